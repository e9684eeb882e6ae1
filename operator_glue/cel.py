"""The CRD's CEL rules, evaluated as the API server does. Pure.

cel-python has CEL's standard alone; what rules use of Kubernetes' own libraries would be added here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

import celpy
from celpy.adapter import json_to_cel
from celpy.evaluation import CELEvalError

#: A message that is longer, empty or has a line break is not used (apiserver's celconfig).
MAX_MESSAGE_BYTES = 5 * 1024


class CelError(ValueError):
    """A rule that cannot be evaluated on this value; the message is the library's."""


def broken(rule: Mapping[str, str], value: Any) -> str | None:
    """What the rule says against ``value``, None when it holds. CelError."""
    try:
        activation = {"self": json_to_cel(value)}
    except (ValueError, TypeError, OverflowError) as error:  # such as an integer of more than 64 bits
        raise CelError(str(error)) from None
    if bool(_evaluated(rule["rule"], activation)):
        return None
    try:
        message = str(_evaluated(rule["messageExpression"], activation)).strip()
    except CelError:
        return rule["message"]
    usable = message and "\n" not in message and len(message.encode()) <= MAX_MESSAGE_BYTES
    return message if usable else rule["message"]


def _evaluated(expression: str, activation: Any) -> Any:
    try:
        return _program(expression).evaluate(activation)
    except (CELEvalError, ValueError, TypeError, KeyError) as error:
        raise CelError(str(error)) from None


def _environment() -> celpy.Environment:
    """It sets the interpreter's recursion limit to 2500, which it needs: once, at import, and never down."""
    before = sys.getrecursionlimit()
    found = celpy.Environment()
    sys.setrecursionlimit(max(before, sys.getrecursionlimit()))
    return found


_ENVIRONMENT = _environment()


@cache
def _program(expression: str) -> celpy.Runner:
    return _ENVIRONMENT.program(_ENVIRONMENT.compile(expression))
