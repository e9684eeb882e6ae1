"""The validating webhook: what CEL cannot say of a ModelDeployment, and what its user should know. Pure.

The API server asks after it has applied schema and CEL rules, so these are not evaluated again (the largest resource
takes cel-python 10 s). It denies only what the request brings: an update of an object that was wrong before, by an
older release or while the webhook was away, goes through with a warning, so that a finalizer can always be removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from operator_glue import admission
from operator_glue.crd import schema
from operator_glue.facts import ClusterFacts
from operator_glue.faults import Fault
from operator_glue.model import API_VERSION, KIND, ModelDeployment
from operator_glue.render import render
from operator_glue.structural import fill, plain
from operator_glue.warnings import Warning
from operator_glue.webhook.envelope import Answer


def judge(request: Mapping[str, Any], facts: ClusterFacts) -> Answer:
    """The answer to an AdmissionReview's request. Other objects and operations are allowed without a word."""
    found, before = request.get("object"), request.get("oldObject")
    if request.get("operation") not in ("CREATE", "UPDATE") or not isinstance(found, Mapping):
        return Answer()
    metadata = found.get("metadata")
    if found.get("kind") != KIND or not isinstance(metadata, Mapping) or metadata.get("deletionTimestamp"):
        return Answer()
    was = before if request.get("operation") == "UPDATE" and isinstance(before, Mapping) else None
    if was is not None and was.get("spec") == found.get("spec"):
        return Answer()
    faults, deployment, strange = _read(found)
    old = {fault.sentence for fault in _read(was)[0]} if faults and was is not None else set()
    denied = tuple(fault for fault in faults if fault.sentence not in old)
    if denied:
        return Answer(denied, said="denied")
    said = [f"{fault.sentence} (as before this update)" for fault in faults]
    if strange is not None:
        said.append(strange)
    if deployment is not None:
        said += [_shown(warning) for warning in warnings(deployment, facts)]
    return Answer(warnings=tuple(said), said="allowed")


def _read(document: Mapping[str, Any]) -> tuple[tuple[Fault, ...], ModelDeployment | None, str | None]:
    """The webhook's own faults, the resource where it has none, and what our types say that the cluster's did not."""
    data = plain(document)
    data.pop("status", None)
    fill(data, schema())
    data |= {"apiVersion": API_VERSION, "kind": KIND}
    if data["metadata"].get("name") is None:  # generateName, before the API server has made a name of it
        data["metadata"] = {**data["metadata"], "name": str(data["metadata"].get("generateName") or "x")}
    # The parts of admission.review that the API server has not done.
    faults = list(dict.fromkeys(admission.webhook_faults(data)))
    try:
        deployment = ModelDeployment.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        path = ".".join(map(str, first["loc"]))
        return (
            tuple(faults),
            None,
            f"{path}: {first['msg']}, by this operator's own definition; the cluster's CustomResourceDefinition is of "
            f"another release",
        )
    if not faults:
        faults += admission.rendering_faults(deployment)
    return tuple(faults), None if faults else deployment, None


def warnings(deployment: ModelDeployment, facts: ClusterFacts) -> tuple[Warning, ...]:
    """Those of admission and of the renderer."""
    return tuple(dict.fromkeys([*admission.warnings(deployment, facts), *_of_renderer(deployment, facts)]))


def _of_renderer(deployment: ModelDeployment, facts: ClusterFacts) -> Iterator[Warning]:
    """Without replicas: what is warned of hangs on none, and a resource can ask for a thousand Pods."""
    roles = [role.model_copy(update={"replicas": 0}) for role in deployment.spec.roles]
    spec = deployment.spec.model_copy(update={"roles": roles})
    for warning in render(deployment.model_copy(update={"spec": spec}), facts).warnings:
        if warning.path != "metadata.uid":  # says that no cluster has seen the object
            yield warning


def _shown(warning: Warning) -> str:
    return f"{warning.path}: {warning.message}" if warning.path else warning.message
