"""What ``validate`` says offline is what a real API server says, in the same words."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings

from api.api_server import Answer, ApiServer
from operator_glue.admission import review
from operator_glue.crd import schema
from operator_glue.faults import Fault, Where
from operator_glue.structural import plain, unknown_fields

sys.path.insert(0, str(Path(__file__).parents[1]))
from documents import broken_documents, valid_documents

#: Without shrinking: each try asks the API server, and a document is small enough to be read as it is.
_SETTINGS = settings(
    deadline=None, suppress_health_check=list(HealthCheck), phases=(Phase.explicit, Phase.reuse, Phase.generate)
)
#: Of a quantity that is neither text nor a whole number the API server says two sentences more than are needed.
_MORE = (
    "must validate at least one schema (anyOf)",
    "in body must be of type integer: ",
    "in body must be of type string: ",
)


def agree(api: ApiServer, document: dict[str, Any]) -> None:
    """Both take the document, or refuse it with the same sentences."""
    document = plain(document)  # as kubectl sends it
    answer, found = api.dry_run(document), review(document)
    faults = found.faults
    ours = [fault for fault in faults if fault.where is not Where.WEBHOOK]
    if answer.status == 400:
        unknown = {fault.sentence for fault in ours if fault.sentence.startswith("unknown field ")}
        assert unknown, answer.message
        assert answer.unknown_fields == unknown
        for path in list(unknown_fields(document, schema())):
            _remove(document, path)
        agree(api, document)
        return
    assert not answer.unknown_fields
    if not answer.rules_were_checked:
        ours = [fault for fault in ours if fault.where is Where.SCHEMA]
    assert {fault.sentence for fault in ours} == _sentences(answer, ours)
    assert answer.taken == (not ours)
    if found.deployment is not None:
        spec = found.deployment.spec.model_dump(by_alias=True, mode="json", exclude_unset=True)
        assert spec == answer.object["spec"]  # defaults and all


def _sentences(answer: Answer, ours: list[Fault]) -> set[str]:
    found = {f"{field}: {message}" for field, message in answer.causes if field != "<nil>"}
    either = [fault.path for fault in ours if "must be of type integer,string" in fault.sentence]
    return {text for text in found if not (text.partition(":")[0] in either and any(more in text for more in _MORE))}


def _remove(document: Any, path: tuple[str | int, ...]) -> None:
    for step in path[:-1]:
        document = document[step]
    del document[path[-1]]


@_SETTINGS
@given(document=valid_documents())
def test_both_take_what_is_right(api: ApiServer, document: dict[str, Any]) -> None:
    assert api.dry_run(document).taken
    agree(api, document)


@settings(_SETTINGS, max_examples=400)
@given(document=broken_documents())
def test_both_refuse_what_is_wrong_in_the_same_words(api: ApiServer, document: dict[str, Any]) -> None:
    agree(api, document)
