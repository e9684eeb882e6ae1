"""The routers' objects: golden files, warnings, and the real routers' own parsers.

DRAINAGENT_WRITE_GOLDEN=1 writes the golden files anew. tests/cluster/engines/setup.sh installs the routers.
"""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from operator_glue import names
from operator_glue.facts import ClusterFacts
from operator_glue.model import ModelDeployment, RouterName
from operator_glue.render import render
from operator_glue.render.picker import MAX_TARGET_PORTS, cluster_role_name, metrics_reader_name
from operator_glue.render.router_parts import Given
from operator_glue.render.routers import router_objects

GOLDEN = Path(__file__).with_name("golden-routers")
UID = "0a1b2c3d-0000-4000-8000-000000000001"
IMAGES = {
    "vllm-router": "vllm/vllm-router:v0.1.17",
    "sglang-gateway": "lmsysorg/sgl-model-gateway:v0.3.2",
    "llm-d-router": "ghcr.io/llm-d/llm-d-router-endpoint-picker:v0.10.0",
}
SERVER: list[dict[str, Any]] = [{"name": "server"}]
HALVES: list[dict[str, Any]] = [{"name": "prefill", "kind": "Prefill"}, {"name": "decode", "kind": "Decode"}]
KEY = {"name": "llama-key", "key": "key"}


def deployment(
    router: str,
    roles: list[dict[str, Any]],
    *,
    engine: str | None = None,
    namespace: str | None = "models",
    **more: Any,
) -> ModelDeployment:
    """``more``: of spec.router."""
    engine = engine or ("SGLang" if router == "sglang-gateway" else "vLLM")
    image = {"vLLM": "vllm/vllm-openai:v0.32.0", "SGLang": "lmsysorg/sglang:v0.5.23"}[engine]
    return ModelDeployment.model_validate(
        {
            "apiVersion": "drainagent.io/v1alpha1",
            "kind": "ModelDeployment",
            "metadata": {"name": "llama", "uid": UID, **({"namespace": namespace} if namespace else {})},
            "spec": {
                "model": {"name": "meta-llama/Llama-3.1-8B-Instruct"},
                "engine": {"name": engine, "image": image},
                "router": {"name": router, "image": IMAGES[router], **more},
                "roles": roles,
            },
        }
    )


def _key(asked: bool) -> dict[str, Any]:
    return {"apiKeySecretRef": KEY} if asked else {}


FACTS = ClusterFacts()
SHAPES: dict[str, tuple[ModelDeployment, ClusterFacts]] = {
    f"{router}-{shape}{'-key' if key else ''}": (deployment(router, roles, **_key(key)), FACTS)
    for router in ("vllm-router", "sglang-gateway", "llm-d-router")
    for shape, roles in (("server", SERVER), ("halves", HALVES))
    for key in (False, True)
    if not (key and router == "llm-d-router")  # admission refuses it
} | {
    "vllm-router-ipv6-kubernetes-1.29": (
        deployment("vllm-router", SERVER, replicas=3),
        ClusterFacts(kubernetes=(1, 29), pod_ip_family=6),
    ),
    "sglang-gateway-ipv6": (deployment("sglang-gateway", SERVER), ClusterFacts(pod_ip_family=6)),
    "llm-d-router-sglang": (deployment("llm-d-router", SERVER, engine="SGLang"), FACTS),
    "llm-d-router-elects": (deployment("llm-d-router", SERVER, replicas=2), FACTS),
    "llm-d-router-no-crd": (deployment("llm-d-router", SERVER), ClusterFacts(inference_pool=False)),
    "llm-d-router-tls": (
        deployment("llm-d-router", [{"name": "server", "extraArgs": ["--ssl-certfile", "/tls/tls.crt"]}]),
        FACTS,
    ),
}


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as such, and no anchors."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def as_yaml(objects: tuple[dict[str, Any], ...]) -> str:
    return yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=120, explicit_start=True)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_renders_as_it_did(shape: str) -> None:
    objects, warnings = router_objects(*SHAPES[shape])
    text = "".join(f"# warning: {warning.path}: {warning.message}\n" for warning in warnings) + as_yaml(objects)
    path = GOLDEN / f"{shape}.yaml"
    if os.environ.get("DRAINAGENT_WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def test_every_golden_file_has_its_shape() -> None:
    assert {path.stem for path in GOLDEN.glob("*.yaml")} == set(SHAPES)


@pytest.mark.parametrize("shape", SHAPES)
def test_same_input_same_bytes_and_nothing_shared(shape: str) -> None:
    md, facts = SHAPES[shape]
    before = md.model_dump_json()
    first, _ = router_objects(md, facts)
    again, _ = router_objects(ModelDeployment.model_validate(json.loads(before)), copy.copy(facts))
    assert json.dumps(first) == json.dumps(again)
    assert md.model_dump_json() == before
    parts = [id(part) for item in first for part in _containers(item)]
    assert len(parts) == len(set(parts))


def _containers(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [value, *(part for item in value.values() for part in _containers(item))]
    return [value, *(part for item in value for part in _containers(item))] if isinstance(value, list) else []


def test_no_router_no_objects() -> None:
    md = deployment("vllm-router", SERVER)
    without = md.model_copy(update={"spec": md.spec.model_copy(update={"router": None})})
    assert router_objects(without, FACTS) == ((), ())


# What the objects say of each other.


def the(shape: str, kind: str) -> dict[str, Any]:
    (found,) = (item for item in router_objects(*SHAPES[shape])[0] if item["kind"] == kind)
    return found


def container(md: ModelDeployment, facts: ClusterFacts = FACTS) -> dict[str, Any]:
    (found,) = (item for item in router_objects(md, facts)[0] if item["kind"] == "Deployment")
    (only,) = found["spec"]["template"]["spec"]["containers"]
    assert isinstance(only, dict)
    return only


@pytest.mark.parametrize("shape", SHAPES)
def test_the_service_finds_the_routers_pods_and_no_selector_of_engines_does(shape: str) -> None:
    md, facts = SHAPES[shape]
    rendered = render(md, facts).objects
    (pods,) = (item["spec"]["template"]["metadata"]["labels"] for item in rendered if item["kind"] == "Deployment")
    found = [item["metadata"]["name"] for item in rendered if item["kind"] == "Service" and _selects(item, pods)]
    assert found == ["llama-router"]
    engines = [item["metadata"]["labels"] for item in rendered if item["kind"] == "Pod"]
    assert engines
    assert not any(_selects(the(shape, "Service"), labels) for labels in engines)


def _selects(service: dict[str, Any], labels: dict[str, str]) -> bool:
    selector: dict[str, str] = service["spec"]["selector"]
    return selector.items() <= labels.items()


def test_routers_select_leaders_alone_and_each_half_by_its_kind() -> None:
    roles = [{**role, "size": 2} for role in HALVES]
    args = container(deployment("vllm-router", roles))["args"]
    pods = [item for item in render(deployment("vllm-router", roles), FACTS).objects if item["kind"] == "Pod"]
    for kind in ("Prefill", "Decode"):
        start = args.index(f"--{kind.lower()}-selector") + 1
        selector = dict(word.split("=", 1) for word in args[start : start + 3])
        found = [pod["metadata"]["labels"] for pod in pods if selector.items() <= pod["metadata"]["labels"].items()]
        assert [(one[names.ROLE_KIND_LABEL], one[names.MEMBER_INDEX_LABEL]) for one in found] == [(kind, "0")]
        withdrawn = {key: value for key, value in found[0].items() if key != names.SERVING_LABEL}
        assert not selector.items() <= withdrawn.items()


@pytest.mark.parametrize("shape", SHAPES)
def test_pods_are_fit_for_the_restricted_standard(shape: str) -> None:
    pod = the(shape, "Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for one in pod["containers"]:
        context = one["securityContext"]
        assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (False, True)
        assert context["capabilities"] == {"drop": ["ALL"]}
    assert all(set(volume) == {"name", "emptyDir"} for volume in pod.get("volumes", []))


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape.endswith("-key")])
def test_the_key_is_in_no_argument(shape: str) -> None:
    only = container(*SHAPES[shape])
    (variable,) = (item for item in only["env"] if "secretKeyRef" in item.get("valueFrom", {}))
    assert variable["valueFrom"] == {"secretKeyRef": KEY}
    assert f"--api-key=$({variable['name']})" in only["args"]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_variable_in_an_argument_is_defined(shape: str) -> None:
    only = container(*SHAPES[shape])
    used = {name for word in only["args"] for name in re.findall(r"\$\((\w+)\)", word)}
    assert used <= {item["name"] for item in only["env"]}


def test_what_is_in_no_namespace_has_no_owner_and_a_name_of_its_own() -> None:
    def cluster(md: ModelDeployment) -> list[dict[str, Any]]:
        return [item for item in router_objects(md, FACTS)[0] if "namespace" not in item["metadata"]]

    md = deployment("llm-d-router", SERVER)
    assert [item["kind"] for item in cluster(md)] == ["ClusterRoleBinding", "ClusterRole", "ClusterRoleBinding"]
    assert not any("ownerReferences" in item["metadata"] for item in cluster(md))
    other = deployment("llm-d-router", SERVER, namespace="other")
    assert not {item["metadata"]["name"] for item in cluster(md)} & {
        item["metadata"]["name"] for item in cluster(other)
    }
    assert cluster_role_name("models", "llama", "router") == "drainagent.io:models:llama:router"
    owned = [item for item in router_objects(md, FACTS)[0] if "namespace" in item["metadata"]]
    assert all(item["metadata"]["ownerReferences"][0]["uid"] == UID for item in owned)


def test_the_token_is_of_an_account_that_reads_the_page_and_nothing_else() -> None:
    objects, _ = router_objects(deployment("llm-d-router", SERVER), FACTS)
    reader = metrics_reader_name("llama")
    (secret,) = (item for item in objects if item["kind"] == "Secret")
    assert secret["type"] == "kubernetes.io/service-account-token"
    assert secret["metadata"]["annotations"] == {"kubernetes.io/service-account.name": reader}
    bound = [
        item["roleRef"]["name"]
        for item in objects
        if item["kind"].endswith("Binding") and item["subjects"][0]["name"] == reader
    ]
    rules = [item["rules"] for item in objects if item["kind"] == "ClusterRole" and item["metadata"]["name"] in bound]
    assert len(bound) == 1
    assert rules == [[{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]]
    order = [(item["kind"], item["metadata"]["name"]) for item in objects]
    # Kubernetes removes a token whose account is not there.
    assert order.index(("ServiceAccount", reader)) < order.index(("Secret", reader))


def test_the_grace_outlives_the_longest_replica() -> None:
    roles: list[dict[str, Any]] = [{"name": "a", "terminationGracePeriodSeconds": 600}, {"name": "b"}]
    for router, grace_s in (("vllm-router", 610), ("sglang-gateway", 610), ("llm-d-router", 635)):
        objects, _ = router_objects(deployment(router, roles), FACTS)
        (found,) = (item for item in objects if item["kind"] == "Deployment")
        assert found["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == grace_s
    args = container(deployment("sglang-gateway", roles))["args"]
    assert args[args.index("--shutdown-grace-period-secs") + 1] == "600"


def test_the_sleep_needs_no_program_where_kubernetes_has_one() -> None:
    md = deployment("vllm-router", SERVER)
    assert container(md)["lifecycle"] == {"preStop": {"sleep": {"seconds": 5}}}
    old = container(md, ClusterFacts(kubernetes=(1, 29)))
    assert old["lifecycle"] == {"preStop": {"exec": {"command": ["sleep", "5"]}}}


# The user's own flags.


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ([], {}),
        (["--port", "9000", "--policy=random"], {"--port": "9000", "--policy": "random"}),
        (["--port=1", "--port", "2"], {"--port": "2"}),
        (["--disable-retries", "--port", "2"], {"--disable-retries": "", "--port": "2"}),
        (["stray", "-v", "--last"], {"--last": ""}),
    ],
)
def test_flags_are_read(words: list[str], values: dict[str, str]) -> None:
    assert Given.read(words).values == values


@pytest.mark.parametrize("router", ["vllm-router", "sglang-gateway"])
def test_a_port_that_the_user_gives_is_taken_over_and_stands_once(router: str) -> None:
    md = deployment(router, SERVER, extraArgs=["--port", "9000", "--prometheus-port=9001"])
    only = container(md)
    assert [word for word in only["args"] if word.startswith(("--port", "--prometheus-port"))] == [
        "--port",
        "--prometheus-port=9001",
    ]
    assert {item["name"]: item["containerPort"] for item in only["ports"]} == {"http": 9000, "metrics": 9001}
    assert only["readinessProbe"]["httpGet"]["port"] == 9000
    (service,) = (item for item in router_objects(md, FACTS)[0] if item["kind"] == "Service")
    assert [item["port"] for item in service["spec"]["ports"]] == [9000, 9001]


def test_the_pickers_ports_and_configuration_can_be_given() -> None:
    md = deployment(
        "llm-d-router", HALVES, extraArgs=["--grpc-port=9100", "--metrics-port=9191", "--config-file", "/etc/own.yaml"]
    )
    only = container(md)
    assert not any(word.startswith(("--grpc-port=9002", "--config-text")) for word in only["args"])
    objects, warnings = router_objects(md, FACTS)
    (pool,) = (item for item in objects if item["kind"] == "InferencePool")
    assert pool["spec"]["endpointPickerRef"]["port"] == {"number": 9100}
    assert warnings == ()


@pytest.mark.parametrize("port", ["", "0", "70000", "http", "-1"])
def test_a_port_that_is_none_is_not_taken_over(port: str) -> None:
    only = container(deployment("vllm-router", SERVER, extraArgs=[f"--port={port}"]))
    assert only["ports"][0]["containerPort"] == 8080


def test_election_can_be_refused() -> None:
    elects = container(deployment("llm-d-router", SERVER, replicas=2))
    assert "--ha-enable-leader-election=true" in elects["args"]
    assert elects["livenessProbe"]["grpc"]["service"] == "liveness"
    refused = container(deployment("llm-d-router", SERVER, replicas=2, extraArgs=["--ha-enable-leader-election=false"]))
    assert "tcpSocket" in refused["livenessProbe"]


# Warnings.


def warned(md: ModelDeployment, facts: ClusterFacts = FACTS) -> list[tuple[str, str]]:
    return [(warning.path, warning.message) for warning in router_objects(md, facts)[1]]


def test_the_plain_shapes_warn_of_nothing() -> None:
    for router in ("vllm-router", "sglang-gateway", "llm-d-router"):
        for roles in (SERVER, HALVES):
            assert warned(deployment(router, roles)) == []


@pytest.mark.parametrize(
    ("md", "path", "says"),
    [
        (
            deployment("vllm-router", [*SERVER, {"name": "b", "ports": [{"containerPort": 9000}]}]),
            "spec.roles[1].ports",
            "role b listens on port 9000, and vllm-router asks every engine on the same one, 8000",
        ),
        (
            deployment("llm-d-router", [HALVES[0], {**HALVES[1], "ports": [{"containerPort": 9000}]}]),
            "spec.roles[1].ports",
            "asks every engine on the same one, 8000",
        ),
        (
            deployment("vllm-router", [{"name": "a", "extraArgs": ["--ssl-keyfile=/k"]}]),
            "spec.roles[0].extraArgs",
            "role a serves TLS, and vllm-router speaks plain HTTP",
        ),
        (
            deployment("sglang-gateway", [{"name": "a", "extraArgs": ["--ssl-certfile", "/c"]}]),
            "spec.roles[0].extraArgs",
            "role a serves TLS, and sglang-gateway speaks plain HTTP",
        ),
        (
            deployment("vllm-router", [{"name": "a", "extraArgs": ["--port", "9000"]}]),
            "spec.roles[0].extraArgs",
            "moves its listener away from port 8000",
        ),
        (deployment("vllm-router", HALVES[:1]), "spec.roles", "no role is Decode"),
        (deployment("sglang-gateway", HALVES[1:]), "spec.roles", "no role is Prefill"),
        (
            deployment("vllm-router", SERVER, apiKeySecretRef=KEY),
            "spec.router.apiKeySecretRef",
            "asks no client for the key, and its own API stays open: it shows the key to the engines, with its own",
        ),
        (
            deployment("vllm-router", HALVES, apiKeySecretRef=KEY),
            "spec.router.apiKeySecretRef",
            "with every request, whoever sends it",
        ),
        (
            deployment("sglang-gateway", SERVER, extraArgs=["--api-key", "literal"]),
            "spec.router.extraArgs",
            "--api-key: the key stands in the Pod",
        ),
        (
            deployment("vllm-router", SERVER, extraArgs=["--selector", "app=mine"]),
            "spec.router.extraArgs",
            "--selector says which engines vllm-router asks",
        ),
        (
            deployment("vllm-router", SERVER, extraArgs=["--api-key-validation-urls", "http://keys/check"]),
            "spec.router.extraArgs",
            "retirements abort",
        ),
        (
            deployment("llm-d-router", HALVES, engine="SGLang"),
            "spec.router.name",
            "SGLang's halves need sglang-gateway",
        ),
        (
            deployment("llm-d-router", SERVER, namespace=None),
            "metadata.namespace",
            "is written for default",
        ),
    ],
)
def test_a_warning_names_the_field_and_what_follows(md: ModelDeployment, path: str, says: str) -> None:
    assert [item for item in warned(md) if item[0] == path and says in item[1]], warned(md)


def test_a_port_that_the_user_gives_the_router_is_what_roles_are_measured_by() -> None:
    roles: list[dict[str, Any]] = [{"name": "a"}, {"name": "b", "ports": [{"containerPort": 9000}]}]
    md = deployment("vllm-router", roles, extraArgs=["--service-discovery-port", "9000"])
    assert [path for path, _ in warned(md)] == ["spec.roles[0].ports"]


def test_without_the_definition_the_pool_is_left_out_and_named() -> None:
    objects, warnings = router_objects(*SHAPES["llm-d-router-no-crd"])
    assert not [item for item in objects if item["kind"] == "InferencePool"]
    (warning,) = warnings
    assert "inferencepools.inference.networking.k8s.io" in warning.message


def test_tls_behind_the_picker() -> None:
    tls = {"extraArgs": ["--ssl-certfile", "/tls/tls.crt"]}
    only = container(deployment("llm-d-router", [{**SERVER[0], **tls}]))
    assert "scheme: https" in only["args"][only["args"].index("--config-text") + 1]
    # The proxy in front of a decoder speaks plain HTTP.
    halves = deployment("llm-d-router", [{**HALVES[0], **tls}, {**HALVES[1], **tls}])
    assert any("one scheme, https here, and role decode" in message for _, message in warned(halves))
    decoders = deployment("llm-d-router", [HALVES[0], {**HALVES[1], **tls}])
    assert warned(decoders) == []


def test_several_listeners_of_one_pod() -> None:
    many = ["--data-parallel-size", "4", "--data-parallel-multi-port-external-lb", "--data-parallel-size-local", "4"]
    roles = [{"name": "a", "extraArgs": many}]
    assert any("asks a Pod on one, 8000" in message for _, message in warned(deployment("vllm-router", roles)))
    (pool,) = (
        item for item in router_objects(deployment("llm-d-router", roles), FACTS)[0] if item["kind"] == "InferencePool"
    )
    assert pool["spec"]["targetPorts"] == [{"number": port} for port in (8000, 8001, 8002, 8003)]
    roles[0]["extraArgs"] = [word.replace("4", "16") for word in many]
    objects, warnings = router_objects(deployment("llm-d-router", roles), FACTS)
    assert len(objects[-1]["spec"]["targetPorts"]) == MAX_TARGET_PORTS
    assert any("16 ports" in warning.message for warning in warnings)


def test_the_pickers_configuration_names_what_it_has() -> None:
    for md, facts in SHAPES.values():
        assert md.spec.router is not None
        args = container(md, facts)["args"]
        if md.spec.router.name is not RouterName.LLM_D_ROUTER or "--config-text" not in args:
            continue
        config = yaml.safe_load(args[args.index("--config-text") + 1])
        plugins = {plugin["type"] for plugin in config["plugins"]}
        used = {item["pluginRef"] for profile in config["schedulingProfiles"] for item in profile["plugins"]}
        assert used <= plugins
        profiles = [profile["name"] for profile in config["schedulingProfiles"]]
        assert profiles == (["prefill", "decode"] if len(md.spec.roles) > 1 else ["default"])


# The real routers' parsers.

ROUTERS = Path(os.environ.get("DRAINAGENT_ROUTERS") or Path.home() / ".cache/drainagent/routers")
#: As tests/cluster/engines/setup.sh installs them.
REAL = {
    "vllm-router": ("vllm-router", "0.1.17", "vllm_router"),
    "sglang-gateway": ("sglang-router", "0.3.2", "sglang_router"),
}
PARSE = """
import dataclasses, json, sys
from {module}.launch_router import parse_router_args
parsed = []
for words in json.load(sys.stdin):
    args = parse_router_args(words)
    args._validate_router_args()
    parsed.append({{field.name: getattr(args, field.name) for field in dataclasses.fields(args)}})
json.dump(parsed, sys.stdout, default=str)
"""


def real_python(router: str) -> Path:
    """Of the virtual environment with the real router; skips where it is not installed."""
    package, version, _ = REAL[router]
    venv = ROUTERS / f"venv-{package}"
    if not (venv / f".ready-{version}").exists():
        pytest.skip(f"{package} {version} is not installed in {ROUTERS}: tests/cluster/engines/setup.sh installs it")
    return venv / "bin/python"


@pytest.mark.parametrize("router", REAL)
def test_the_real_parser_takes_every_command_line(router: str) -> None:
    python = real_python(router)
    values = {"NAMESPACE": "models", "OPENAI_API_KEY": "-secret", "ROUTER_API_KEY": "-secret"}
    shapes, lines = [], []
    for shape, (md, facts) in SHAPES.items():
        if md.spec.router is not None and md.spec.router.name.value == router:
            shapes.append(shape)
            args = container(md, facts)["args"]
            lines.append([re.sub(r"\$\((\w+)\)", lambda match: values[match[1]], word) for word in args])
    # Without this, a stray proxy or configuration of the caller's would be the router's too.
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    run = subprocess.run(
        [python, "-c", PARSE.format(module=REAL[router][2])],
        input=json.dumps(lines),
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    serving = {"app.kubernetes.io/instance": "llama", "drainagent.io/serving": "true"}
    for shape, parsed in zip(shapes, json.loads(run.stdout), strict=True):
        md, facts = SHAPES[shape]
        halves = len(md.spec.roles) > 1
        assert parsed["service_discovery"] is True
        assert parsed["service_discovery_namespace"] == "models"
        assert parsed["service_discovery_port"] == (8000 if router == "vllm-router" else 30000)
        assert (parsed["port"], parsed["prometheus_port"]) == (8080, 29000)
        assert parsed["api_key"] == ("-secret" if shape.endswith("-key") else None)
        assert parsed["selector"] == ({} if halves else serving)
        assert parsed["prefill_selector"] == ({**serving, "drainagent.io/role-kind": "Prefill"} if halves else {})
        assert parsed["decode_selector"] == ({**serving, "drainagent.io/role-kind": "Decode"} if halves else {})
        mode = "vllm_pd_disaggregation" if router == "vllm-router" else "pd_disaggregation"
        assert parsed[mode] is halves
        assert ("::" in parsed["host"]) is (facts.pod_ip_family == 6)
