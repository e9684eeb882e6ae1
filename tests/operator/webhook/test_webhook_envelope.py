"""AdmissionReview in and out, and warnings as the API server passes them on."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from admitted_pods import INJECTED, review

from operator_glue.faults import Fault
from operator_glue.webhook.envelope import MAX_WARNING, MAX_WARNINGS, Answer, fitted, respond

REVIEW = review(INJECTED["plain"][0])
UID = REVIEW["request"]["uid"]


def test_our_own_mistake_lets_it_pass() -> None:
    def broken(_: Mapping[str, Any]) -> Answer:
        raise ZeroDivisionError("no")

    written, answer = respond(REVIEW, broken)
    assert answer.mistake == "ZeroDivisionError: no"
    told = "drainagent's webhook failed on this object and let it pass unseen: ZeroDivisionError: no"
    assert written["response"] == {"uid": UID, "allowed": True, "warnings": [told]}


def test_an_answer_that_is_no_json_is_a_mistake_too() -> None:
    written, answer = respond(REVIEW, lambda _: Answer(patch=({"op": "add", "path": "/x", "value": object()},)))
    assert answer.mistake is not None
    assert written["response"]["allowed"] is True
    assert "patch" not in written["response"]


def test_a_denial_reads_as_the_api_servers_own() -> None:
    faults = (Fault("spec.a", "spec.a: Invalid value: 1: must be 2"), Fault("spec.b", "unknown"))
    written, _ = respond(REVIEW, lambda _: Answer(faults, patch=({"op": "remove", "path": "/x"},)))
    response = written["response"]
    assert response["allowed"] is False
    assert "patch" not in response
    status = response["status"]
    assert status["message"] == "spec.a: Invalid value: 1: must be 2; unknown"
    assert (status["code"], status["reason"]) == (422, "Invalid")
    assert status["details"]["causes"][0] == {
        "reason": "FieldValueInvalid",
        "field": "spec.a",
        "message": "Invalid value: 1: must be 2",
    }


def test_warnings_fit() -> None:
    assert fitted(("a", "b", "a")) == ["a", "b"]
    assert fitted(("x" * MAX_WARNING,))[0].endswith("…")
    long = " ".join(f"word{index}" for index in range(100))
    parts = fitted((long,))
    assert len(parts) > 2
    assert " ".join(part.strip("…") for part in parts) == long
    many = fitted(tuple(f"warning {index}" for index in range(20)))
    assert len(many) == MAX_WARNINGS
    assert many[-1] == "… and 9 more lines: drainagent-operator validate says all of them"
    assert fitted(("a\nb\x1b",)) == ["a\\x0ab\\x1b"]  # a header takes no control character


@given(warnings=st.lists(st.text(max_size=700), max_size=20))
def test_any_warnings_fit(warnings: list[str]) -> None:
    parts = fitted(tuple(warnings))
    assert len(parts) <= MAX_WARNINGS
    assert all(len(part) <= MAX_WARNING and part.isprintable() for part in parts)
