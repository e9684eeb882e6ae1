"""The hook at Pod admission: what ``inject`` gives, on Pods of the platforms that create them."""

from __future__ import annotations

import base64
import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from admitted_pods import INJECTED, LEFT, SILENT, VLLM, Pod, pod, review

from drainagent.injection import Outcome, Request, inject_into, verify
from drainagent.patch import apply
from drainagent.podspec import AgentImage, Delivery
from operator_glue.facts import ClusterFacts
from operator_glue.webhook.envelope import Answer, NotAReviewError, respond
from operator_glue.webhook.injection import Settings, inject_pod

SETTINGS = Settings(Delivery.INIT_CONTAINER, AgentImage("corp/agent:1"))


def answer(found: Pod, how: Settings = SETTINGS) -> Answer:
    return inject_pod(review(found)["request"], how)


def patched(found: Pod, operations: Any) -> Any:
    """RFC 6902, written from the standard and not from drainagent.patch."""
    data = copy.deepcopy(found)
    for operation in operations:
        *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        place: Any = data
        for part in parents:
            place = place[int(part)] if isinstance(place, list) else place[part]
        if isinstance(place, list):
            index = len(place) if last == "-" else int(last)
            if operation["op"] == "add":
                place.insert(index, operation["value"])
            elif operation["op"] == "replace":
                place[index] = operation["value"]
            else:
                del place[index]
        elif operation["op"] == "remove":
            del place[last]
        else:
            assert operation["op"] == "add" or last in place
            place[last] = operation["value"]
    return data


def hooks(found: Pod) -> list[list[str]]:
    return [
        container["lifecycle"]["preStop"]["exec"]["command"]
        for container in found["spec"]["containers"]
        if "python3" in json.dumps(container.get("lifecycle"))
    ]


@pytest.mark.parametrize("delivery", list(Delivery))
@pytest.mark.parametrize("name", INJECTED)
def test_a_pod_gets_its_hook(name: str, delivery: Delivery) -> None:
    found, end = INJECTED[name]
    image = None if delivery is Delivery.IN_IMAGE else AgentImage("corp/agent:1", pull_secrets=("pull",))
    before = copy.deepcopy(found)
    said = answer(found, Settings(delivery, image))
    assert found == before
    assert not said.faults
    new = patched(found, said.patch)
    (argv,) = hooks(new)
    assert argv[-len(end) :] == end
    assert new["spec"]["terminationGracePeriodSeconds"] == found["spec"]["terminationGracePeriodSeconds"]
    assert str(new["spec"]["terminationGracePeriodSeconds"]) in argv
    assert [volume["name"] for volume in new["spec"]["volumes"]].count("drainagent") == (image is not None)
    # Again, after another webhook has changed something: nothing.
    assert answer(new, Settings(delivery, image)).patch == ()


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, (found, _) in INJECTED.items()
        if "annotations" not in found["metadata"] and "LWS" not in str(found)
    ],
)
def test_it_is_what_inject_gives(name: str) -> None:
    found, _ = INJECTED[name]
    (outcome,) = inject_into(found, Request(SETTINGS.delivery, SETTINGS.image))
    assert isinstance(outcome, Outcome)
    said = answer(found)
    assert patched(found, said.patch) == apply(found, outcome.changes)
    assert said.said == outcome.said
    assert verify(patched(found, said.patch), Request())[0].problem is None


@pytest.mark.parametrize("name", LEFT)
def test_a_pod_is_left_with_a_warning(name: str) -> None:
    found, words = LEFT[name]
    said = answer(found)
    assert said.patch == ()
    (warning,) = said.warnings
    assert words in warning
    assert warning.startswith("drainagent.io/inject: the Pod gets no drain hook: ")
    assert "--grace" not in warning
    assert "--remove" not in warning


@pytest.mark.parametrize("name", SILENT)
def test_a_pod_is_left_without_a_word(name: str) -> None:
    said = answer(SILENT[name])
    assert said.patch == ()
    assert said.warnings == ()
    assert said.said


def test_notes_are_warnings_but_for_that_of_every_hook() -> None:
    assert answer(INJECTED["plain"][0]).warnings == ()
    istio = pod(VLLM, {"name": "istio-proxy", "image": "istio/proxyv2"})
    (warning,) = answer(istio).warnings
    assert "Istio puts its proxy into this Pod as a plain container" in warning


@pytest.mark.parametrize("joined", [False, True])
def test_a_grace_that_another_webhook_changed_is_the_hooks_too(joined: bool) -> None:
    found = INJECTED["plain"][0]
    new = patched(found, answer(found).patch)
    argv = hooks(new)[0]
    if joined:
        argv[-2:] = ["--grace=30"]
    new["spec"]["terminationGracePeriodSeconds"] = 90
    again = patched(new, answer(new).patch)
    assert hooks(again)[0][-1] == ("--grace=90" if joined else "90")
    hooks(again)[0][-1] = hooks(new)[0][-1]
    assert again == new
    new["spec"]["terminationGracePeriodSeconds"] = 5
    assert answer(new).patch == ()
    assert "the drain hook's grace is 30, the Pod's terminationGracePeriodSeconds 5" in answer(new).warnings[0]


def test_a_hook_that_another_hand_took_away_comes_back_whole() -> None:
    found = INJECTED["plain"][0]
    whole = patched(found, answer(found).patch)
    robbed = copy.deepcopy(whole)
    del robbed["spec"]["containers"][0]["lifecycle"]
    again = patched(robbed, answer(robbed).patch)
    assert again == whole


def test_the_leaderworkersets_own_webhook_comes_first() -> None:
    """Without its variables a worker would be read as a leader, or not at all."""
    early = SILENT["LeaderWorkerSet, before its own webhook"]
    late = INJECTED["LeaderWorkerSet, SGLang's worker"][0]
    assert answer(early).patch == ()
    assert "--leader-env" in hooks(patched(late, answer(late).patch))[0]


@pytest.mark.parametrize(
    "request_",
    [
        {**review(INJECTED["plain"][0])["request"], "operation": "UPDATE"},
        {**review(INJECTED["plain"][0])["request"], "subResource": "ephemeralcontainers"},
        {**review(INJECTED["plain"][0])["request"], "object": None},
        {**review(INJECTED["plain"][0])["request"], "kind": {"kind": "Deployment"}},
    ],
)
def test_what_is_no_creation_of_a_pod(request_: Any) -> None:
    assert inject_pod(request_, SETTINGS) == Answer()


def test_settings_of_the_process() -> None:
    facts = ClusterFacts(delivery=Delivery.IN_IMAGE, own_python=True)
    assert Settings.of(facts) == Settings(Delivery.IN_IMAGE, None, True)
    assert Settings.of(ClusterFacts()).image == ClusterFacts().agent_image
    found = INJECTED["plain"][0]
    (argv,) = hooks(patched(found, answer(found, Settings.of(facts)).patch))
    assert argv[0] == "/opt/drainagent/python/bin/python3"


# ---- nothing raises


_KEYS = st.sampled_from(
    ["metadata", "spec", "containers", "name", "labels", "annotations", "command", "args", "env", "lifecycle",
     "preStop", "exec", "value", "volumeMounts", "mountPath", "image", "initContainers", "volumes", "imagePullSecrets",
     "terminationGracePeriodSeconds", "drainagent.io/inject", "drainagent.io/injected", "drainagent.io/port"]
)  # fmt: skip
_SCALARS = st.sampled_from(
    [
        None,
        True,
        False,
        0,
        -1,
        15,
        10**30,
        1.5,
        "",
        "x",
        "vllm",
        "serve",
        "hook",
        "drainagent",
        "python3",
        "{}",
        "\ud800",
    ]
)
_JUNK = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4), max_leaves=12
)


@st.composite
def bent_pods(draw: Any) -> Any:
    """A real Pod with something else somewhere."""
    found: Any = copy.deepcopy(draw(st.sampled_from([item for item, _ in (*INJECTED.values(), *LEFT.values())])))
    for _ in range(draw(st.integers(1, 3))):
        place = found
        for _ in range(draw(st.integers(1, 6))):
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = draw(st.sampled_from(keys)) if keys else None
            if key is None or not isinstance(place[key], dict | list) or not place[key]:
                break
            place = place[key]
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if keys:
            place[draw(st.sampled_from(keys))] = draw(_JUNK)
    return found


@settings(deadline=None, max_examples=300)
@given(found=bent_pods() | _JUNK)
def test_any_pod_is_answered(found: Any) -> None:
    asked = review(found)
    asked["request"]["kind"]["kind"] = "Pod"
    written, said = respond(asked, lambda request: inject_pod(request, SETTINGS))
    json.dumps(written)
    response = written["response"]
    assert response["allowed"] is True
    assert response["uid"] == asked["request"]["uid"]
    if "patch" in response:
        new = patched(found, json.loads(base64.b64decode(response["patch"])))
        assert answer(new).patch == ()
    else:
        assert not said.patch


@settings(deadline=None, max_examples=100)
@given(document=_JUNK, request_=_JUNK)
def test_any_review_is_answered_or_said_to_be_none(document: Any, request_: Any) -> None:
    whole = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request_}
    for found in (document, whole):
        with pytest.raises(NotAReviewError):
            respond(found, lambda _: Answer())
