"""The hook in a Pod template: added, taken out again, read back."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainagent.catalogue import SGLANG, VLLM
from drainagent.hook_options import read_hook_arguments
from drainagent.patch import apply
from drainagent.podspec import (
    AGENT_HOME,
    NAME,
    RECORD_ANNOTATION,
    AgentImage,
    BadRecordError,
    Delivery,
    Hook,
    Injection,
    changes_to_inject,
    changes_to_remove,
    missing_of_delivery,
    read_hook,
)

HOOK = Hook(VLLM, ("http://127.0.0.1:8000/metrics",), "60")
IMAGE = AgentImage("corp/agent:1")


def template(**spec: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "proxy"}, {"name": "main", "command": ["vllm", "serve"]}], **spec}}


def wanted(delivery: Delivery = Delivery.INIT_CONTAINER, **more: Any) -> Injection:
    image = None if delivery is Delivery.IN_IMAGE else IMAGE
    return Injection(**{"container": 1, "hook": HOOK, "delivery": delivery, "image": image, "grace_s": 60, **more})


def test_the_hook_is_what_the_kubelet_runs() -> None:
    assert HOOK.argv() == [
        "python3", "-ISB", AGENT_HOME, "hook", "--engine", "vllm", "--url", "http://127.0.0.1:8000/metrics",
        "--grace", "60",
    ]  # fmt: skip
    options, wrong = read_hook_arguments(HOOK.argv()[4:])
    assert not wrong
    assert (options.engine, options.grace) == ("vllm", "60")


def test_init_container() -> None:
    new = apply(template(), changes_to_inject(template(), wanted()))
    main = new["spec"]["containers"][1]
    assert main["lifecycle"] == {"preStop": {"exec": {"command": HOOK.argv()}}}
    assert main["volumeMounts"] == [{"name": NAME, "mountPath": AGENT_HOME, "readOnly": True}]
    (copier,) = new["spec"]["initContainers"]
    assert (copier["image"], copier["command"]) == ("corp/agent:1", ["/copy", AGENT_HOME])
    assert copier["resources"]["requests"] == {"cpu": "100m", "memory": "64Mi"}
    assert copier["securityContext"]["runAsNonRoot"] is True
    assert new["spec"]["volumes"] == [{"name": NAME, "emptyDir": {"sizeLimit": "64Mi"}}]
    assert new["spec"]["terminationGracePeriodSeconds"] == 60
    assert new["spec"]["containers"][0] == {"name": "proxy"}
    assert missing_of_delivery(new, main) is None


def test_image_volume_and_in_image() -> None:
    new = apply(template(), changes_to_inject(template(), wanted(Delivery.IMAGE_VOLUME)))
    (volume,) = new["spec"]["volumes"]
    assert volume == {"name": NAME, "image": {"reference": "corp/agent:1", "pullPolicy": "IfNotPresent"}}
    assert "initContainers" not in new["spec"]
    new = apply(template(), changes_to_inject(template(), wanted(Delivery.IN_IMAGE)))
    assert "volumes" not in new["spec"]
    assert "volumeMounts" not in new["spec"]["containers"][1]
    assert "lifecycle" in new["spec"]["containers"][1]


def test_a_pod_that_is_root_gets_no_word_against_it() -> None:
    root = template(securityContext={"runAsUser": 0})
    (copier,) = apply(root, changes_to_inject(root, wanted()))["spec"]["initContainers"]
    assert "runAsNonRoot" not in copier["securityContext"]


def test_a_guaranteed_pod_stays_one() -> None:
    limits = {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": 1}
    before = template()
    for container in before["spec"]["containers"]:
        container["resources"] = {"limits": limits}
    (copier,) = apply(before, changes_to_inject(before, wanted()))["spec"]["initContainers"]
    assert copier["resources"]["requests"] == copier["resources"]["limits"]
    before["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "1"}
    (copier,) = apply(before, changes_to_inject(before, wanted()))["spec"]["initContainers"]
    assert copier["resources"]["requests"] != copier["resources"]["limits"]


def test_the_copier_runs_first_and_secrets_come_once() -> None:
    before = template(initContainers=[{"name": "fetch"}], imagePullSecrets=[{"name": "a"}])
    image = AgentImage("corp/agent:1", "Always", ("a", "b"))
    new = apply(before, changes_to_inject(before, wanted(image=image)))
    assert [item["name"] for item in new["spec"]["initContainers"]] == [NAME, "fetch"]
    assert new["spec"]["initContainers"][0]["imagePullPolicy"] == "Always"
    assert new["spec"]["imagePullSecrets"] == [{"name": "a"}, {"name": "b"}]
    assert apply(new, changes_to_remove(new)) == before


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"volumes": [{"name": NAME}]}, "spec.volumes has an entry named drainagent"),
        ({"initContainers": [{"name": NAME}]}, "spec.initContainers"),
        ({"containers": [{"name": "a"}, {"name": "b", "volumeMounts": [{"mountPath": AGENT_HOME + "/"}]}]}, "mounts"),
    ],
)
def test_taken_names_are_refused(spec: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        changes_to_inject(template(**spec), wanted())


NAMES = st.sampled_from(["a", "b", "c"])
NAMED = st.lists(st.fixed_dictionaries({"name": NAMES}), max_size=2)
CONTAINER = st.fixed_dictionaries(
    {"name": st.just("main")},
    optional={
        "command": st.just(["vllm", "serve"]),
        "args": st.lists(st.sampled_from(["m", "--x"]), max_size=2),
        "lifecycle": st.fixed_dictionaries(
            {},
            optional={
                "postStart": st.just({"exec": {"command": ["a"]}}),
                "preStop": st.sampled_from([{"sleep": {"seconds": 5}}, {"exec": {"command": ["sleep", "5"]}}]),
            },
        ),
        "volumeMounts": st.lists(st.just({"name": "a", "mountPath": "/a"}), max_size=2),
    },
)
TEMPLATES = st.fixed_dictionaries(
    {
        "spec": st.fixed_dictionaries(
            {"containers": st.tuples(st.just({"name": "proxy"}), CONTAINER).map(list)},
            optional={
                "initContainers": NAMED,
                "volumes": NAMED,
                "imagePullSecrets": NAMED,
                "terminationGracePeriodSeconds": st.integers(15, 90),
                "securityContext": st.just({"runAsUser": 0}),
            },
        )
    },
    optional={
        "metadata": st.fixed_dictionaries(
            {},
            optional={
                "labels": st.just({"a": "b"}),
                "annotations": st.dictionaries(NAMES, NAMES, max_size=2),
            },
        )
    },
)


@given(TEMPLATES, st.sampled_from(Delivery), st.booleans(), st.integers(30, 60))
def test_remove_brings_back_what_was_said(before: dict[str, Any], delivery: Delivery, flag: bool, grace_s: int) -> None:
    kept = copy.deepcopy(before)
    image = AgentImage("corp/agent:1", pull_secrets=("b", "z"))
    injection = wanted(
        delivery,
        image=None if delivery is Delivery.IN_IMAGE else image,
        grace_s=grace_s,
        flags=("--enable-metrics",) if flag else (),
    )
    new = apply(before, changes_to_inject(before, injection))
    assert before == kept
    hook = read_hook(new["spec"]["containers"][1]["lifecycle"]["preStop"])
    assert hook == HOOK
    assert new["spec"]["terminationGracePeriodSeconds"] == grace_s
    main = new["spec"]["containers"][1]
    assert ("--enable-metrics" in [*main.get("command", []), *main.get("args", [])]) is flag
    assert apply(new, changes_to_remove(new)) == before
    assert changes_to_remove(before) == ()


def test_what_another_hand_changed_meanwhile_stays() -> None:
    new = apply(template(), changes_to_inject(template(), wanted()))
    new["spec"]["volumes"].insert(0, {"name": "cache"})
    new["metadata"]["annotations"]["a"] = "b"
    new["spec"]["containers"][1]["lifecycle"]["postStart"] = {"exec": {"command": ["x"]}}
    del new["spec"]["initContainers"]
    old = apply(new, changes_to_remove(new))
    assert old["spec"]["volumes"] == [{"name": "cache"}]
    assert old["metadata"] == {"annotations": {"a": "b"}}
    assert old["spec"]["containers"][1]["lifecycle"] == {"postStart": {"exec": {"command": ["x"]}}}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"container":1}', '{"container":"a","created":"b"}', "[" * 9000])
def test_a_record_that_is_none_of_ours(text: str) -> None:
    with pytest.raises(BadRecordError, match="no record of an injection"):
        changes_to_remove({**template(), "metadata": {"annotations": {RECORD_ANNOTATION: text}}})


@pytest.mark.parametrize(
    ("argv", "hook"),
    [
        (HOOK.argv(), HOOK),
        (
            ["python3", "-IB", "-m", "drainagent", "hook", "--engine=sglang", "--grace=30", "--termination-log"],
            Hook(SGLANG, (), "30", extra=("--termination-log",)),
        ),
        (
            ["/usr/local/bin/drainagent", "hook", "--settle", "9", "--leader-env", "A"],
            Hook(None, (), None, ("--leader-env", "A"), ("--settle", "9"), "/usr/local/bin/drainagent"),
        ),
        (["drainagent", "check"], None),
        (["sleep", "10"], None),
        (["sh", "-c", "drainagent hook"], None),
    ],
)
def test_a_hook_is_read_back(argv: list[str], hook: Hook | None) -> None:
    assert read_hook({"exec": {"command": argv}}) == hook


@pytest.mark.parametrize("pre_stop", [None, {}, {"exec": {}}, {"exec": {"command": "drainagent hook"}}, {"sleep": {}}])
def test_no_hook_of_ours(pre_stop: Any) -> None:
    assert read_hook(pre_stop) is None


def test_what_an_agent_that_is_mounted_lacks() -> None:
    new = apply(template(), changes_to_inject(template(), wanted()))
    main = new["spec"]["containers"][1]
    assert missing_of_delivery(template(), template()["spec"]["containers"][1]) is None
    assert "does not mount" in str(missing_of_delivery(new, {"name": "main"}))
    assert "no init container" in str(missing_of_delivery({"spec": {**new["spec"], "initContainers": []}}, main))
    assert "no volume" in str(missing_of_delivery({"spec": {**new["spec"], "volumes": []}}, main))


def test_without_a_record_everything_else_is_the_same() -> None:
    """As the renderer has it: a Pod that said nothing before needs no way back."""
    recorded = apply(template(), changes_to_inject(template(), wanted()))
    unrecorded = apply(template(), changes_to_inject(template(), wanted(recorded=False)))
    del recorded["metadata"]["annotations"][RECORD_ANNOTATION]
    assert recorded.pop("metadata") == {"annotations": {}}
    assert unrecorded == recorded
