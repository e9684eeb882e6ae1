"""The list of event reasons in the docs is the one of the code."""

from __future__ import annotations

import ast
from pathlib import Path

import operator_glue
from operator_glue.reconcile.events import EVENTS

SOURCES = sorted(Path(operator_glue.__file__).parent.rglob("*.py"))


def told() -> set[str]:
    """Reasons that stand as a word where an event is made."""
    found = set()
    for source in SOURCES:
        for node in ast.walk(ast.parse(source.read_text())):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            reason = node.args[0]
            if called in ("Event", "event") and isinstance(reason, ast.Constant) and isinstance(reason.value, str):
                found.add(reason.value)
    return found


def test_every_event_is_in_the_list() -> None:
    assert told() - set(EVENTS) == set()
    assert len(told()) > 15


def test_nothing_in_the_list_is_never_told() -> None:
    text = "".join(source.read_text() for source in SOURCES if source.name != "events.py")
    states = {f"Retirement{state}" for state in ("Disqualified", "Withdrawing", "Draining", "Deleting", "Settling")}
    missing = [reason for reason in EVENTS if f'"{reason}"' not in text and reason not in states]
    assert missing == []
