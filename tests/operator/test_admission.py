"""What admission says offline. That a real API server says the same is tests/operator/api's to show."""

from __future__ import annotations

import copy
import time
from dataclasses import replace
from typing import Any

import pytest
from documents import broken_documents, valid_documents
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from operator_glue.admission import review, validate, warnings
from operator_glue.facts import ClusterFacts
from operator_glue.faults import Where
from operator_glue.model import ModelDeployment
from operator_glue.structural import fill, plain, unknown_fields

#: A rule costs cel-python a millisecond or more, and each example has dozens.
_SETTINGS = settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))


def document(*roles: dict[str, Any], engine: str = "vLLM", **spec: Any) -> dict[str, Any]:
    """A resource whose roles have names; without a role, with a plain one."""
    return {
        "apiVersion": "drainagent.io/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {"name": "llama"},
        "spec": {
            "model": {"name": "m"},
            "engine": {"name": engine, "image": "i"},
            "roles": [
                {"name": f"role-{letter}", **role} for letter, role in zip("abcdefghijk", roles or [{}], strict=False)
            ],
            **spec,
        },
    }


def sentences(found: dict[str, Any]) -> list[str]:
    return [str(fault) for fault in validate(found)]


def test_a_plain_resource_is_taken() -> None:
    found = review(document())
    assert found.faults == ()
    assert found.deployment is not None
    assert found.deployment.metadata.name == "llama"


@pytest.mark.parametrize(
    ("role", "sentence"),
    [
        (
            {"terminationGracePeriodSeconds": 14},
            "spec.roles[0].terminationGracePeriodSeconds: Invalid value: 14: "
            "spec.roles[0].terminationGracePeriodSeconds in body should be greater than or equal to 15",
        ),
        (
            {"terminationGracePeriodSeconds": 3601},
            "spec.roles[0].terminationGracePeriodSeconds: Invalid value: 3601: "
            "spec.roles[0].terminationGracePeriodSeconds in body should be less than or equal to 3600",
        ),
        (
            {"replicas": "2"},
            'spec.roles[0].replicas: Invalid value: "string": spec.roles[0].replicas in body must be of type integer: '
            '"string"',
        ),
        (
            {"kind": "Worker"},
            'spec.roles[0].kind: Unsupported value: "Worker": supported values: "Server", "Prefill", "Decode"',
        ),
        ({"extra_args": []}, 'unknown field "spec.roles[0].extra_args"'),
        ({"env": [{"name": "A"}, {"name": "A"}]}, 'spec.roles[0].env[1]: Duplicate value: {"name":"A"}'),
        ({"env": [{"value": "x"}]}, "spec.roles[0].env[0].name: Required value"),
        (
            {"size": 65},
            "spec.roles[0].size: Invalid value: 65: spec.roles[0].size in body should be less than or equal to 64",
        ),
        ({"name": "x" * 41}, "spec.roles[0].name: Too long: may not be more than 40 bytes"),
        (
            {"name": "a\n"},
            'spec.roles[0].name: Invalid value: "a\\n": spec.roles[0].name in body should match '
            "'^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'",
        ),
        (
            {"name": "decode-0"},
            'spec.roles[0].name: Invalid value: "object": decode-0 ends as the name of a replica does, in a dash and a '
            "number",
        ),
        (
            {"name": "router"},
            'spec.roles[0].name: Invalid value: "object": router is the name of what the operator names after the '
            "router",
        ),
        (
            {"command": ["x"], "extraArgs": ["y"]},
            'spec.roles[0].extraArgs: Invalid value: "object": command takes the command line over, so that extraArgs '
            "have nothing to be appended to; write them into command",
        ),
        (
            {"env": [{"name": "DRAINAGENT_MEMBER_INDEX", "value": "0"}]},
            'spec.roles[0].env[0].name: Invalid value: "object": DRAINAGENT_MEMBER_INDEX is set by the operator, as '
            "all is that begins with DRAINAGENT_",
        ),
        (
            {"extraArgs": ["--model=x"]},
            'spec.roles[0].extraArgs: Invalid value: "object": --model is set by the operator from spec.model.name; '
            "only a role that sets command owns its command line",
        ),
    ],
)
def test_a_mistake_is_named_with_its_value_and_bound(role: dict[str, Any], sentence: str) -> None:
    assert sentences(document(role)) == [sentence]


@pytest.mark.parametrize("grace_s", [None, 15, 30, 3600])
def test_a_grace_within_its_bounds_is_taken(grace_s: int | None) -> None:
    assert sentences(document({"terminationGracePeriodSeconds": grace_s})) == []


def test_ten_mistakes_are_ten_sentences() -> None:
    found = document(
        {"name": "Prefill", "kind": "Prefill", "terminationGracePeriodSeconds": 10, "extraArgs": ["--mod", "x"]},
        {"replicas": -1, "size": 100, "env": [{"name": "A"}, {"name": "A"}], "bogus": 1},
        engine="vllm",
        router={"name": "nginx", "image": "r"},
    )
    found["metadata"]["name"] = "Llama"
    del found["spec"]["model"]
    told = [fault.path for fault in validate(found)]
    assert told == [
        "spec.roles[1].bogus",
        "metadata.name",
        "metadata",
        "spec.engine.name",
        "spec.roles",
        "spec.roles[0].name",
        "spec.roles[0].terminationGracePeriodSeconds",
        "spec.roles[1].replicas",
        "spec.roles[1].size",
        "spec.roles[1].env[1]",
        "spec.router.name",
        "spec.model",
    ]


def test_a_server_does_not_stand_beside_a_half() -> None:
    (said,) = sentences(document({}, {"kind": "Decode"}))
    assert said == (
        'spec.roles: Invalid value: "object": a Server does not stand beside another kind, and role-a is Server, '
        "role-b is Decode"
    )
    assert sentences(document({"kind": "Prefill"}, {"kind": "Decode"})) == []


@pytest.mark.parametrize(
    ("engine", "router", "is_taken"),
    [
        ("vLLM", "vllm-router", True),
        ("SGLang", "sglang-gateway", True),
        ("vLLM", "llm-d-router", True),
        ("SGLang", "llm-d-router", True),
        ("SGLang", "vllm-router", False),
        ("vLLM", "sglang-gateway", False),
    ],
)
def test_a_router_fronts_its_engine(engine: str, router: str, is_taken: bool) -> None:
    said = sentences(document(engine=engine, router={"name": router, "image": "r"}))
    assert (said == []) == is_taken
    if not is_taken:
        assert said[0].startswith(f'spec.router.name: Invalid value: "object": {router} does not front {engine}, ')


def test_names_that_make_too_long_hostnames_are_refused() -> None:
    found = document({"name": "r" * 40})
    found["metadata"]["name"] = "d" * 14
    assert sentences(found) == []
    found["metadata"]["name"] = "d" * 15
    assert sentences(found) == [
        f'spec.roles: Invalid value: "object": metadata.name {"d" * 15} and roles[].name {"r" * 40} together have more '
        "than 54 characters, and hostnames are made of them"
    ]


@pytest.mark.parametrize("name", ["0llama", "llama.v2"])
def test_a_name_that_no_service_can_have_is_refused(name: str) -> None:
    found = document()
    found["metadata"]["name"] = name
    assert sentences(found) == [
        f'metadata: Invalid value: "object": metadata.name {name} must be lower case letters, digits and dashes, a '
        "letter first: Services are named after it"
    ]


def test_a_generated_name_counts_with_what_is_put_behind_it() -> None:
    found = document({"name": "r" * 40})
    found["metadata"] = {"generateName": "d" * 8 + "-"}
    assert sentences(found) == []
    found["metadata"] = {"generateName": "d" * 9 + "-"}
    assert len(sentences(found)) == 1


def test_metadata_is_looked_at() -> None:
    found = document()
    found["metadata"] = {"lables": {}, "labels": {"a b": "c", "n": 1}, "annotations": {"/x": "y"}}
    assert [fault.path for fault in validate(found)] == [
        "metadata.lables",
        "metadata.name",
        "metadata.labels",
        "metadata.labels.n",
        "metadata.annotations",
    ]


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        ([], "a list is no ModelDeployment, which is a map of fields"),
        ("text", "a text is no ModelDeployment, which is a map of fields"),
        (
            {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "prod"}},
            "Deployment/web in prod (apps/v1) is no ModelDeployment of drainagent.io/v1alpha1",
        ),
        ({"a": 1}, "an object without apiVersion and kind is no ModelDeployment of drainagent.io/v1alpha1"),
    ],
)
def test_another_document_says_what_it_is(found: Any, sentence: str) -> None:
    assert sentences(found) == [sentence]


def test_another_version_is_named_and_the_rest_is_looked_at() -> None:
    found = document({"size": 0}) | {"apiVersion": "drainagent.io/v1"}
    assert sentences(found) == [
        'apiVersion: Invalid value: "drainagent.io/v1": must be drainagent.io/v1alpha1',
        "spec.roles[0].size: Invalid value: 0: spec.roles[0].size in body should be greater than or equal to 1",
    ]


# ---- the webhook's rules


@pytest.mark.parametrize(
    ("engine", "role", "word", "flag"),
    [
        ("vLLM", {"extraArgs": ["--foo", "--nnode=2"], "size": 2}, "--nnode=2", "--nnodes"),
        ("vLLM", {"extraArgs": ["-n2"], "size": 2}, "-n2", "--nnodes"),
        ("vLLM", {"extraArgs": ["-r", "1"], "size": 2}, "-r", "--node-rank"),
        (
            "vLLM",
            {"extraArgs": ["--kv-transfer_config", "{}"], "kind": "Decode"},
            "--kv-transfer_config",
            "--kv-transfer-config",
        ),
        (
            "vLLM",
            {"extraArgs": ["--kv-transfer-config.kv_role", "kv_both"], "kind": "Prefill"},
            "--kv-transfer-config.kv_role",
            "--kv-transfer-config",
        ),
        ("SGLang", {"extraArgs": ["--disaggregation-mod", "decode"]}, "--disaggregation-mod", "--disaggregation-mode"),
        ("SGLang", {"extraArgs": ["--model-pa", "x"]}, "--model-pa", "--model"),
        (
            "SGLang",
            {"extraArgs": ["$(FLAG)"], "env": [{"name": "FLAG", "value": "--model=x"}]},
            "$(FLAG)",
            "--model",
        ),
    ],
)
def test_an_owned_flag_is_refused_in_every_spelling_of_its_parser(
    engine: str, role: dict[str, Any], word: str, flag: str
) -> None:
    (fault,) = validate(document(role, engine=engine))
    index = role["extraArgs"].index(word)
    assert fault.path == f"spec.roles[0].extraArgs[{index}]"
    assert fault.where is Where.WEBHOOK
    assert f'Invalid value: "{word}": {engine} reads it as {flag}, which is set by the operator' in fault.sentence
    assert "sets command" in fault.sentence


@pytest.mark.parametrize(
    ("engine", "role"),
    [
        ("vLLM", {"extraArgs": ["--nnodes", "1"]}),
        ("vLLM", {"extraArgs": ["--kv-transfer-config", "{}"]}),
        ("vLLM", {"extraArgs": ["--model-impl", "auto", "--served-model-name", "x"]}),
        ("vLLM", {"extraArgs": ["--port", "1", "--host", "::", "--uds", "/x"]}),
        ("SGLang", {"extraArgs": ["--enable-metrics-for-all-schedulers"]}),
        ("SGLang", {"extraArgs": ["--node-rank=0"], "size": 1}),
        ("vLLM", {"command": ["vllm", "serve", "--model", "x"]}),
    ],
)
def test_what_the_operator_does_not_set_is_the_users(engine: str, role: dict[str, Any]) -> None:
    assert sentences(document(role, engine=engine)) == []


def test_a_flag_that_is_told_twice_has_a_sentence_for_each_spelling() -> None:
    found = document({"extraArgs": ["--nnodes=2", "--nnode", "2"], "size": 2})
    assert [(fault.path, fault.where) for fault in validate(found)] == [
        ("spec.roles[0].extraArgs", Where.CEL),
        ("spec.roles[0].extraArgs[1]", Where.WEBHOOK),
    ]


def test_peers_are_networks() -> None:
    assert sentences(document(retirement={"ignorePeers": ["10.0.0.0/8", "::1", "10.1.2.3/8"]})) == []
    assert sentences(document(retirement={"ignorePeers": ["10.0.0.0/33"]})) == [
        'spec.retirement.ignorePeers[0]: Invalid value: "10.0.0.0/33": must be an address or a network such as '
        "10.0.0.0/8"
    ]


def test_labels_of_pods_are_looked_at() -> None:
    template = {"metadata": {"labels": {"a b": "c"}, "annotations": {"x y": "z"}}, "spec": {"nodeSelector": {"/": "a"}}}
    told = [
        (fault.path.removeprefix("spec.roles[0].template."), fault.where)
        for fault in validate(document({"template": template}))
    ]
    assert set(told) == {
        ("metadata.labels", Where.WEBHOOK),
        ("metadata.annotations", Where.WEBHOOK),
        ("spec.nodeSelector", Where.WEBHOOK),
    }


def test_what_the_renderer_refuses_is_refused() -> None:
    found = document({"template": {"spec": {"volumes": [{"name": "drainagent", "emptyDir": {}}]}}})
    (fault,) = validate(found)
    assert fault.where is Where.WEBHOOK
    assert fault.sentence.startswith("spec.roles[0]: Forbidden: spec.volumes has an entry named drainagent")


# ---- generated documents


@_SETTINGS
@given(found=valid_documents())
def test_a_generated_resource_is_taken_and_keeps_what_it_says(found: dict[str, Any]) -> None:
    before = copy.deepcopy(found)
    judged = review(found)
    assert judged.faults == ()
    assert found == before
    assert judged.deployment is not None
    again = judged.deployment.model_dump(by_alias=True, mode="json", exclude_unset=True)
    assert review(again).deployment == judged.deployment


@_SETTINGS
@given(found=broken_documents())
def test_a_generated_mistake_is_a_sentence_and_no_error(found: dict[str, Any]) -> None:
    judged = review(found)
    assert bool(judged.faults) == (judged.deployment is None)
    for fault in judged.faults:
        assert "\n" not in fault.sentence
        assert fault.sentence.startswith((fault.path, "unknown field "))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


def test_a_list_without_end_is_refused_soon() -> None:
    found = document(*({"extraArgs": ["--foo"] * 256} for _ in range(10)))
    found["spec"]["roles"] = [{**role, "name": f"r{index}"} for index, role in enumerate(found["spec"]["roles"] * 50)]
    started_s = time.process_time()
    assert sentences(found)[0] == "spec.roles: Too many: 500: must have at most 10 items"
    assert time.process_time() - started_s < 10


@_SETTINGS
@given(spec=_JSON, metadata=_JSON)
def test_anything_is_judged(spec: Any, metadata: Any) -> None:
    found = {"apiVersion": "drainagent.io/v1alpha1", "kind": "ModelDeployment", "metadata": metadata, "spec": spec}
    assert validate(found)


def test_structural_treatment_is_the_api_servers() -> None:
    part: dict[str, Any] = {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "default": 1},
            "b": {"type": "string"},
            "c": {"type": "object", "default": {}, "properties": {"d": {"type": "integer", "default": 2}}},
            "e": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "integer", "default": 3}}}},
        },
    }
    assert fill({"a": None, "b": None, "e": [{}, None]}, part) == {"a": 1, "c": {"d": 2}, "e": [{"a": 3}, None]}
    assert list(unknown_fields({"x": 1, "c": {"y": {"z": 1}}, "e": [{"w": 1}]}, part)) == [
        ("x",),
        ("c", "y"),
        ("e", 0, "w"),
    ]
    assert plain({1: 2.0, "x": [1.5, 2**63]}) == {"1": 2, "x": [1.5, 2.0**63]}


# ---- warnings


def warned(found: dict[str, Any], **facts: Any) -> dict[str, str]:
    judged = review(found)
    assert judged.faults == ()
    assert isinstance(judged.deployment, ModelDeployment)
    return {item.path: item.message for item in warnings(judged.deployment, replace(ClusterFacts(), **facts))}


PROVED: dict[str, Any] = {"retirement": {"withoutRouter": "ProveFromMember"}}


def test_a_plain_role_behind_a_router_is_warned_of_nothing() -> None:
    assert warned(document(router={"name": "vllm-router", "image": "r"})) == {}
    assert warned(document(**PROVED)) == {}


@pytest.mark.parametrize(
    ("engine", "role", "path", "words"),
    [
        ("vLLM", {"extraArgs": ["--port", "9000"]}, "extraArgs", ("--port moves the listener", "port 8000", "ports")),
        ("vLLM", {"extraArgs": ["--uds=/x"]}, "extraArgs", ("--uds moves the listener",)),
        ("vLLM", {"extraArgs": ["--host", "127.0.0.1"]}, "extraArgs", ("--host moves the listener",)),
        ("vLLM", {"extraArgs": ["--disable-log-stats"]}, "extraArgs", ("gauges", "IncompleteEnvelope")),
        ("vLLM", {"extraArgs": ["--data-parallel-size", "4"]}, "extraArgs", ("4 API servers", "--api-server-count 1")),
        ("vLLM", {"extraArgs": ["--data-parallel-hybrid-lb"]}, "extraArgs", ("hybrid", "on a Server", "aborts")),
        (
            "vLLM",
            {"extraArgs": ["--kv-transfer-config", '{"kv_role":"kv_producer"}']},
            "extraArgs",
            ("reads as prefill", "on a Server"),
        ),
        (
            "SGLang",
            {"kind": "Decode"},
            "terminationGracePeriodSeconds",
            ("30 is below 45", "by 10 s", "0.5.23", "3 to 5 s"),
        ),
        (
            "SGLang",
            {"kind": "Prefill", "terminationGracePeriodSeconds": 44},
            "terminationGracePeriodSeconds",
            ("by 24 s",),
        ),
        (
            "vLLM",
            {"template": {"metadata": {"annotations": {"sidecar.istio.io/inject": "true"}}}},
            "template.metadata",
            ("Istio", "nativeSidecar"),
        ),
    ],
)
def test_a_role_is_warned(engine: str, role: dict[str, Any], path: str, words: tuple[str, ...]) -> None:
    found = warned(document(role, engine=engine, **PROVED))
    assert list(found) == [f"spec.roles[0].{path}"]
    for word in words:
        assert word in found[f"spec.roles[0].{path}"]


@pytest.mark.parametrize(
    ("engine", "role"),
    [
        ("vLLM", {"extraArgs": ["--port", "8000", "--host", "0.0.0.0"]}),
        ("vLLM", {"extraArgs": ["--data-parallel-size", "4", "--api-server-count", "1"]}),
        ("SGLang", {"kind": "Decode", "terminationGracePeriodSeconds": 45}),
        ("vLLM", {"kind": "Decode"}),
        ("vLLM", {"command": ["vllm", "serve", "m", "--port", "1", "--disable-log-stats"]}),
    ],
)
def test_a_role_that_is_well_is_not_warned(engine: str, role: dict[str, Any]) -> None:
    assert warned(document(role, engine=engine, **PROVED)) == {}


def test_neither_router_nor_proof_is_warned_of() -> None:
    found = warned(document())
    assert list(found) == ["spec.retirement.withoutRouter"]
    assert "Aborted after 30 s" in found["spec.retirement.withoutRouter"]


def test_a_classic_mesh_is_warned_of_with_its_way_out() -> None:
    found = warned(document(**PROVED), mesh_classic_sidecar=True)
    assert "native sidecars are the way out" in found["metadata.namespace"]
