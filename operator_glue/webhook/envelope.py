"""AdmissionReview in and out. Pure.

Source: k8s.io/api's admission/v1 and k8s.io/apiserver's pkg/endpoints/filters/warning.go, of Kubernetes 1.34.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from drainagent.text import printable
from operator_glue.faults import Fault

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"
#: Once all warnings of a request have more than 4096 characters, the API server cuts each at 256 and drops the rest.
MAX_WARNING = 256
#: Ours together, which leaves room for those of other webhooks.
MAX_WARNINGS = 12

Patch = tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Answer:
    """To one request. ``faults``: why it is denied; none, it is allowed. ``warnings``: sentences for kubectl's stderr.

    ``patch``: RFC 6902. ``said``: what was concluded, for the log and the API server's audit log. ``mistake``: one of
    ours, which allowed the request unseen.
    """

    faults: tuple[Fault, ...] = ()
    warnings: tuple[str, ...] = ()
    patch: Patch = ()
    said: str = ""
    mistake: str | None = None


class NotAReviewError(ValueError):
    """What came is no AdmissionReview that could be answered; the message is a sentence."""


def respond(document: Any, decide: Callable[[Mapping[str, Any]], Answer]) -> tuple[dict[str, Any], Answer]:
    """The AdmissionReview to send back, and the answer in it. NotAReviewError.

    Whatever else goes wrong allows the request: it is our mistake.
    """
    if not isinstance(document, Mapping) or (document.get("apiVersion"), document.get("kind")) != (API_VERSION, KIND):
        raise NotAReviewError(f"the body is no {KIND} of {API_VERSION}")
    request = document.get("request")
    uid = request.get("uid") if isinstance(request, Mapping) else None
    if not isinstance(request, Mapping) or not isinstance(uid, str):
        raise NotAReviewError(f"the {KIND} has no request with a uid")
    try:
        answer = decide(request)
        response = _response(uid, request, answer)
    except Exception as error:
        what = f"{type(error).__name__}: {error}"[:200]
        told = f"drainagent's webhook failed on this object and let it pass unseen: {what}"
        answer = Answer(warnings=(told,), mistake=what)
        response = _response(uid, request, answer)
    return {"apiVersion": API_VERSION, "kind": KIND, "response": response}, answer


def _response(uid: str, request: Mapping[str, Any], answer: Answer) -> dict[str, Any]:
    response: dict[str, Any] = {"uid": uid, "allowed": not answer.faults}
    if answer.faults:
        response["status"] = _status(request, answer.faults)
    elif answer.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(json.dumps(answer.patch).encode()).decode()
    if answer.warnings:
        response["warnings"] = fitted(answer.warnings)
    if answer.said:
        response["auditAnnotations"] = {"said": printable(answer.said)}
    return response


def _status(request: Mapping[str, Any], faults: tuple[Fault, ...]) -> dict[str, Any]:
    """As the API server itself refuses an object, so that kubectl prints it alike: a line for each cause."""
    kind = request.get("kind")
    details: dict[str, Any] = {
        "causes": [
            {
                "reason": "FieldValueInvalid",
                "field": fault.path,
                "message": fault.sentence.removeprefix(f"{fault.path}: "),
            }
            for fault in faults
        ]
    }
    if isinstance(kind, Mapping):
        details |= {key: str(kind.get(key) or "") for key in ("group", "kind")}
    details["name"] = str(request.get("name") or "")
    message = "; ".join(fault.sentence for fault in faults)
    return {"status": "Failure", "code": 422, "reason": "Invalid", "message": message, "details": details}


def fitted(warnings: tuple[str, ...]) -> list[str]:
    """Sentences as warnings of at most MAX_WARNING characters; a longer one goes on in the next. None is said twice."""
    parts = [part for text in dict.fromkeys(warnings) for part in _parts(printable(text))]
    if len(parts) <= MAX_WARNINGS:
        return parts
    more = len(parts) - MAX_WARNINGS + 1
    return [*parts[: MAX_WARNINGS - 1], f"… and {more} more lines: drainagent-operator validate says all of them"]


def _parts(text: str) -> Iterator[str]:
    room = MAX_WARNING - 2  # for the … at both ends
    begin = ""
    while len(text) > room:
        cut = text.rfind(" ", 1, room + 1)
        cut = cut if cut > 0 else room
        yield f"{begin}{text[:cut]}…"
        begin, text = "…", text[cut:].lstrip()
    yield f"{begin}{text}"
