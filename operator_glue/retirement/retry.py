"""The annotation drainagent.io/retirement-retry: ``<role>:<ordinal>:<token>``. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from operator_glue.retirement.data import Key

#: A DNS label, a number without leading zeros, and what a label's value may hold, not longer than the status keeps.
_REQUEST = re.compile(
    r"([a-z0-9](?:[-a-z0-9]*[a-z0-9])?):(0|[1-9][0-9]{0,4}):([A-Za-z0-9][-A-Za-z0-9_.]{0,252})", re.ASCII
)


@dataclass(frozen=True)
class RetryRequest:
    """``token``: a retry with one that was taken before is none."""

    key: Key
    token: str


def read_retry(text: str) -> RetryRequest | str:
    """The request, or a sentence that says why it is none."""
    match = _REQUEST.fullmatch(text)
    if match is None:
        return f"{text[:300]!r} is not <role>:<ordinal>:<token>, such as server:3:again-1."
    return RetryRequest(Key(match[1], int(match[2])), match[3])
