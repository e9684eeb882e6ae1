"""What a user should know of a resource that is right all the same. Plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Warning:
    """``path``: the field it is about, such as ``spec.roles[0].extraArgs``. ``message``: a sentence."""

    path: str
    message: str
