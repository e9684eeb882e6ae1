"""A ModelDeployment as it is read: once for each of its states, what is refused told in a sentence."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from passes import model_deployment

from operator_glue.facts import ClusterFacts
from operator_glue.kube import Object
from operator_glue.names import RETRY_ANNOTATION, ROLL_ANNOTATION
from operator_glue.runtime.reading import Planned, Reader, planned

FACTS = ClusterFacts()


def thing(**changes: Any) -> Object:
    found = model_deployment(**changes)
    found["metadata"] |= {"uid": "u", "generation": 1, "resourceVersion": "1"}
    return found


def changed(change: Callable[[Object], Any]) -> Object:
    found = copy.deepcopy(thing())
    change(found)
    return found


def test_read() -> None:
    found = planned(thing(replicas=3), FACTS)
    assert found.fault is None
    (role,) = found.roles
    assert (role.name, role.replicas, role.size) == ("server", 3, 1)
    assert role.spec_hash == found.plans["server"].spec_hash
    assert [item["kind"] for item in found.wanted.objects] == ["Service"]


def test_an_item_of_a_list_has_no_kind() -> None:
    bare = thing()
    del bare["kind"], bare["apiVersion"]
    assert planned(bare, FACTS).roles == planned(thing(), FACTS).roles


def test_of_several_faults_the_first_is_told() -> None:
    spec = {"roles": [{"name": "A"}, {"name": "b", "replicas": -1}]}
    found = planned({**thing(), "spec": spec}, FACTS)
    assert found.deployment is None
    assert found.fault is not None
    assert found.fault.endswith("more)")
    assert (found.roles, found.wanted.objects) == ((), ())


@pytest.mark.parametrize("spec", [None, [], "x", {}, {"roles": None}, {"roles": [None]}, {"model": 1, "engine": []}])
def test_nonsense_is_a_fault(spec: Any) -> None:
    found = planned({**thing(), "spec": spec}, FACTS)
    assert found.deployment is None
    assert found.fault


def test_read_once_for_each_state() -> None:
    facts = [FACTS]
    reader = Reader(lambda: facts[0])

    def read(item: Object) -> Planned:
        return asyncio.run(reader.read(item))

    first = read(thing())
    assert read(thing()) is first
    assert read(changed(lambda item: item["metadata"].update(resourceVersion="2"))) is first
    assert read(changed(lambda item: item.update(status={"phase": "Ready"}))) is first
    assert read(changed(lambda item: item["metadata"].update(annotations={RETRY_ANNOTATION: "a/0 x"}))) is first

    def rolled(item: Object) -> None:
        item["metadata"].update(annotations={ROLL_ANNOTATION: "2"})

    assert read(changed(rolled)).roles[0].spec_hash != first.roles[0].spec_hash

    def scaled(item: Object) -> None:
        item["metadata"].update(generation=2)
        item["spec"]["roles"][0].update(replicas=5)

    assert read(changed(scaled)).roles[0].replicas == 5
    second = read(thing())
    facts[0] = replace(FACTS, pod_ip_family=6)
    assert read(thing()) is not second
    third = read(thing())
    reader.forget("u")
    reader.forget("never was")
    assert read(thing()) is not third


def test_two_deployments_are_two() -> None:
    reader = Reader(lambda: FACTS)
    other = changed(lambda item: item["metadata"].update(uid="v", name="qwen"))
    first = asyncio.run(reader.read(thing()))
    second = asyncio.run(reader.read(other))
    assert first.deployment is not None
    assert second.deployment is not None
    assert (first.deployment.metadata.name, second.deployment.metadata.name) == ("llama", "qwen")
    assert asyncio.run(reader.read(thing())) is first
