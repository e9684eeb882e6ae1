"""Who answers for a replica, and what is told before anything is touched: from rendered Pods and hand-written ones."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from drainagent.catalogue import SGLANG, VLLM
from operator_glue import names
from operator_glue.retirement.classification import Answering, Unanswerable, classify, node_names
from operator_glue.retirement.data import Key, Member
from operator_glue.retirement.members import member_of, replica_key
from operator_glue.retirement.reasons import Reason

GOLDEN = Path(__file__).parents[1] / "golden"
Pod = dict[str, Any]


def running(pod: Pod, at: int = 0) -> Pod:
    """As a cluster shows it once it runs."""
    pod = copy.deepcopy(pod)
    pod["metadata"] |= {"name": f"{pod['metadata'].get('generateName', 'pod-')}{at}", "uid": f"u{at}"}
    pod["metadata"]["resourceVersion"] = "7"
    pod["spec"]["nodeName"] = "node-1"
    main = {"name": "main", "restartCount": 0, "containerID": f"containerd://{at}", "started": True}
    pod["status"] = {
        "phase": "Running",
        "podIP": f"10.0.0.{at + 1}",
        "podIPs": [{"ip": f"10.0.0.{at + 1}"}, {"ip": f"fd00::{at + 1}"}],
        "containerStatuses": [{**main, "state": {"running": {"startedAt": "2026-12-01T00:00:00Z"}}}],
    }
    return pod


def golden(name: str, ordinal: int = 0, role: str | None = None) -> list[Pod]:
    """The Pods of one replica, as the golden file has them."""
    objects = yaml.safe_load_all((GOLDEN / f"{name}.rendered.yaml").read_text(encoding="utf-8"))
    pods = [item for item in objects if item and item["kind"] == "Pod"]
    first = role or pods[0]["metadata"]["labels"][names.COMPONENT_LABEL]
    found = [pod for pod in pods if replica_key(pod, _deployment(pod)) == Key(first, ordinal)]
    return [running(pod, at) for at, pod in enumerate(found)]


def _deployment(pod: Pod) -> str:
    return str(pod["metadata"]["labels"][names.INSTANCE_LABEL])


def judged(pods: list[Pod], neighbours: list[Pod] | None = None, *, prove: bool = False) -> Answering | Unanswerable:
    return classify([member_of(pod) for pod in pods], neighbours, prove_from_member=prove)


def reason(found: Answering | Unanswerable) -> Reason | None:
    if isinstance(found, Answering):
        return None
    assert found.message
    return found.reason


def vllm(*args: str, **spec: Any) -> Pod:
    """A Pod as rendered for a Server, with this command line."""
    (pod,) = golden("vllm-server")
    main = pod["spec"]["containers"][0]
    main["args"] = [*main["args"], *args]
    pod["spec"] |= spec
    return pod


def sglang(*args: str) -> Pod:
    (pod,) = golden("sglang-server")
    main = pod["spec"]["containers"][0]
    main["args"] = [*main["args"], *args]
    return pod


# ---- rendered replicas


ROLES = {path.name.removesuffix(".rendered.yaml") for path in GOLDEN.glob("*.rendered.yaml")}


@pytest.mark.parametrize("name", sorted(ROLES))
def test_every_rendered_replica_is_told_apart(name: str) -> None:
    """By what its document says: halves are refused, take-overs held, all others answer, by their leader alone."""
    objects = yaml.safe_load_all((GOLDEN / f"{name}.rendered.yaml").read_text(encoding="utf-8"))
    roles = {
        item["metadata"]["labels"][names.COMPONENT_LABEL]: item["metadata"]["labels"][names.ROLE_KIND_LABEL]
        for item in objects
        if item and item["kind"] == "Pod"
    }
    assert roles
    for role, kind in roles.items():
        pods = golden(name, role=role)
        found = judged(pods, [])
        if kind in ("Prefill", "Decode"):
            assert reason(found) is Reason.PREFILL_DECODE
        elif "take-over" in name:
            assert reason(found) is Reason.TAKE_OVER
        elif "moved" in name and "127.0.0.1" not in pods[0]["spec"]["containers"][0]["args"]:
            assert reason(found) is Reason.LISTENER_UNKNOWN
        else:
            assert isinstance(found, Answering), (role, found)
            assert found.member_uid == "u0"
            assert found.agent[-1] == "/opt/drainagent"
            assert found.command()[: len(found.agent) + 2] == (*found.agent, "check", "--json")
            assert all("127.0.0.1" in url or "[::1]" in url for url in found.urls)


def test_what_is_run_in_the_member() -> None:
    found = judged(golden("vllm-server"))
    assert isinstance(found, Answering)
    assert found.command(("10.9.0.0/16",)) == (
        *("python3", "-ISB", "/opt/drainagent", "check", "--json", "--engine", "vllm"),
        *("--url", "http://127.0.0.1:8000/metrics", "--ignore-peer", "10.9.0.0/16"),
    )
    assert (found.engine, found.engines, found.load_trusted) == (VLLM, 1, True)


@pytest.mark.parametrize(
    ("args", "engines", "load_trusted"),
    [
        (("--data-parallel-size", "4"), 4, False),
        (("--data-parallel-size", "4", "--api-server-count", "1"), 4, True),
        (("--api-server-count=2",), 1, False),
        (("--no-enable-server-load-tracking",), 1, False),
    ],
)
def test_engines_and_load_by_the_command_line(args: tuple[str, ...], engines: int, load_trusted: bool) -> None:
    found = judged([vllm(*args)])
    assert isinstance(found, Answering)
    assert (found.engines, found.load_trusted) == (engines, load_trusted)


def test_sglangs_load_is_not_vllms() -> None:
    found = judged([sglang()])
    assert isinstance(found, Answering)
    assert (found.engine, found.load_trusted) == (SGLANG, False)


# ---- halves, in every spelling


NIXL = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'
HALVES = [
    vllm("--data-parallel-external-lb"),
    vllm("--data_parallel_hybrid_lb"),
    vllm("--data-parallel-ext"),
    vllm("--data-parallel-rank", "1"),
    vllm("--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}'),
    vllm('--kv-transfer-config={"kv_connector":"LMCacheConnectorV1","kv_role":"kv_consumer"}'),
    vllm("--kv_transfer_config", NIXL),
    vllm("--kv-transfer-config", "{}", "--kv-transfer-config", NIXL),
    vllm("--kv-transfer-config.kv_role", "kv_consumer"),
    vllm("--kv-transfer-config", '{"kv_connector":"MooncakeConnector","kv_role":"kv_both"}'),
    vllm("--kv-transfer-config", '{"kv_connector":"P2pNcclConnector","kv_role":"kv_both"}'),
    vllm(
        "--kv-transfer-config",
        '{"kv_connector":"MultiConnector","kv_role":"kv_both","kv_connector_extra_config":{"connectors":'
        '[{"kv_connector":"OffloadingConnector","kv_role":"kv_both"},'
        '{"kv_connector":"NixlConnector","kv_role":"kv_both"}]}}',
    ),
    sglang("--disaggregation-mode", "prefill"),
    sglang("--disaggregation-mode=decode"),
    sglang("--disaggregation-mo", "decode"),
    sglang("--disaggregation-mode", "null", "--disaggregation-mode", "prefill"),
]
NO_HALVES = [
    vllm(),
    vllm("--kv-transfer-config", '{"kv_connector":"OffloadingConnector","kv_role":"kv_both"}'),
    vllm("--kv-transfer-config", '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'),
    vllm("--kv-transfer-config", NIXL, "--kv-transfer-config", "{}"),
    vllm(
        "--kv-transfer-config",
        '{"kv_connector":"MultiConnector","kv_role":"kv_both","kv_connector_extra_config":{"connectors":'
        '[{"kv_connector":"OffloadingConnector","kv_role":"kv_both"}]}}',
    ),
    sglang(),
    sglang("--disaggregation-mode", "prefill", "--disaggregation-mode", "null"),
]
UNREADABLE = [
    vllm("--kv-transfer-config", "{not json"),
    vllm("--kv-transfer-config", '{"kv_connector":"SomebodysConnector","kv_role":"kv_both"}'),
    vllm("--kv-transfer-config", "$(SET_ELSEWHERE)"),
    vllm("--config", "/etc/vllm.yaml"),
]


def _shown(pod: Pod) -> str:
    return " ".join(pod["spec"]["containers"][0]["args"][-2:])[-60:]


@pytest.mark.parametrize("pod", HALVES, ids=_shown)
def test_a_half_is_refused(pod: Pod) -> None:
    assert reason(judged([pod])) is Reason.PREFILL_DECODE


@pytest.mark.parametrize("pod", NO_HALVES, ids=_shown)
def test_a_cache_is_no_half(pod: Pod) -> None:
    assert reason(judged([pod])) is None


@pytest.mark.parametrize("pod", UNREADABLE, ids=_shown)
def test_what_cannot_be_read_is_held(pod: Pod) -> None:
    assert reason(judged([pod])) is Reason.UNREADABLE_COMMAND


def test_a_variable_is_read_where_its_value_stands_in_the_container() -> None:
    pod = vllm("--kv-transfer-config", "$(KV)")
    pod["spec"]["containers"][0]["env"] = [{"name": "KV", "value": NIXL}]
    assert reason(judged([pod])) is Reason.PREFILL_DECODE


def test_the_label_says_it_where_the_command_line_does_not() -> None:
    pod = vllm()
    pod["metadata"]["labels"][names.ROLE_KIND_LABEL] = "Decode"
    assert reason(judged([pod])) is Reason.PREFILL_DECODE


# ---- what else is told at once


def test_a_command_that_starts_no_engine() -> None:
    pod = vllm()
    pod["spec"]["containers"][0] |= {"command": ["/serve.sh"], "args": []}
    assert reason(judged([pod])) is Reason.UNKNOWN_ENGINE


def test_no_hook_no_agent() -> None:
    pod = vllm()
    del pod["spec"]["containers"][0]["lifecycle"]
    assert reason(judged([pod])) is Reason.NO_AGENT


@pytest.mark.parametrize(
    "changes",
    [
        {names.PORT_ANNOTATION: "80x"},
        {names.PORT_ANNOTATION: "8001"},
        {names.SCRAPE_ANNOTATION: "false"},
        {names.SCHEME_ANNOTATION: "https"},
        {names.PATH_ANNOTATION: "/other"},
    ],
)
def test_annotations_that_name_another_listener(changes: dict[str, str]) -> None:
    pod = vllm()
    pod["metadata"]["annotations"] |= changes
    assert reason(judged([pod])) is Reason.LISTENER_UNKNOWN


@pytest.mark.parametrize("args", [("--uds", "/run/vllm"), ("--disable-log-stats",), ("--headless",)])
def test_no_listener_with_gauges(args: tuple[str, ...]) -> None:
    assert reason(judged([vllm(*args)])) is Reason.LISTENER_UNKNOWN


# ---- replicas of several Pods

SEVERAL = "sglang-leader-and-followers"


def test_the_leader_alone_answers() -> None:
    found = judged(golden(SEVERAL))
    assert isinstance(found, Answering)
    assert found.member_uid == "u0"


def _index(pods: list[Pod], at: int, index: str | None) -> list[Pod]:
    labels = pods[at]["metadata"]["labels"]
    labels.pop(names.MEMBER_INDEX_LABEL)
    if index is not None:
        labels[names.MEMBER_INDEX_LABEL] = index
    return pods


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        (golden(SEVERAL)[1:], Reason.NO_LEADER),
        (golden(SEVERAL)[:-1], Reason.WRONG_SIZE),
        (golden(SEVERAL)[:1], Reason.WRONG_SIZE),
        (_index(golden(SEVERAL), 1, "0"), Reason.SEVERAL_LEADERS),
        (_index(golden(SEVERAL), 0, "9"), Reason.NO_LEADER),
        (_index(golden(SEVERAL), 0, "x"), Reason.NO_LEADER),
        (_index(golden(SEVERAL), 1, "2"), Reason.MEMBERS_DISAGREE),
        ([], Reason.NO_LEADER),
    ],
)
def test_who_answers_cannot_be_told(pods: list[Pod], expected: Reason) -> None:
    assert reason(judged(pods)) is expected


def _changed(at: int, change: str) -> list[Pod]:
    pods = golden(SEVERAL)
    pod, main = pods[at], pods[at]["spec"]["containers"][0]
    if change == "image":
        main["image"] = "lmsysorg/sglang:v0.5.22"
    elif change == "arguments":
        main["args"] += ["--tp-size", "8"]
    elif change == "environment":
        main["env"].append({"name": "SGLANG_X", "value": "1"})
    elif change == "size":
        next(item for item in main["env"] if item["name"] == names.REPLICA_SIZE_ENV)["value"] = "4"
    else:
        pod["metadata"]["annotations"][names.SPEC_HASH_ANNOTATION] = "another"
    return pods


@pytest.mark.parametrize("change", ["image", "arguments", "environment", "size", "spec hash"])
@pytest.mark.parametrize("at", [0, 2])
def test_members_that_disagree(at: int, change: str) -> None:
    assert reason(judged(_changed(at, change))) is Reason.MEMBERS_DISAGREE


def test_a_follower_that_is_a_half_refuses_the_whole() -> None:
    pods = golden(SEVERAL)
    pods[1]["spec"]["containers"][0]["args"] += ["--disaggregation-mode", "decode"]
    assert reason(judged(pods)) is Reason.PREFILL_DECODE


def test_ended_members_do_not_count() -> None:
    pods = golden(SEVERAL)
    pods.append(running(pods[0], 9))
    pods[-1]["status"]["phase"] = "Failed"
    assert isinstance(judged(pods), Answering)


# ---- shared networks


def _neighbour(port: int, *, host_port: bool = False, host_network: bool = True, node: str = "node-1") -> Pod:
    ports = [{"containerPort": port, **({"hostPort": port} if host_port else {})}]
    return {
        "metadata": {"name": "other", "namespace": "n", "uid": "other"},
        "spec": {
            "nodeName": node,
            "hostNetwork": host_network,
            "containers": [{"name": "c", "ports": ports}],
        },
    }


@pytest.mark.parametrize(
    ("neighbours", "ambiguous"),
    [
        (None, True),
        ([], False),
        ([_neighbour(8000)], True),
        ([_neighbour(8001)], False),
        ([_neighbour(8000, node="node-2")], False),
        ([_neighbour(8000, host_network=False)], False),
        ([_neighbour(8000, host_network=False, host_port=True)], True),
    ],
)
def test_a_port_on_the_nodes_network(neighbours: list[Pod] | None, ambiguous: bool) -> None:
    pod = vllm(hostNetwork=True)
    own = None if neighbours is None else [*neighbours, pod]
    assert (reason(judged([pod], own)) is Reason.AMBIGUOUS_LISTENER) is ambiguous
    assert node_names([member_of(pod)]) == ("node-1",)
    assert node_names([member_of(vllm())]) == ()


def _beside(change: str) -> Pod:
    pod = vllm()
    if change == "container":
        pod["spec"]["containers"].append({"name": "istio-proxy"})
    elif change == "sidecar":
        pod["spec"]["initContainers"] = [{"name": "linkerd-proxy", "restartPolicy": "Always"}]
    else:
        pod["metadata"]["annotations"]["ambient.istio.io/redirection"] = "enabled"
    return pod


@pytest.mark.parametrize("change", ["container", "sidecar", "ambient"])
def test_a_proxy_beside_the_engine_hides_its_clients(change: str) -> None:
    assert reason(judged([_beside(change)], prove=True)) is Reason.PROXIED_LISTENER
    assert isinstance(judged([_beside(change)]), Answering)  # a router's list says it otherwise


def test_an_init_container_that_ends_is_no_proxy() -> None:
    pod = vllm()
    pod["spec"]["initContainers"] = [{"name": "copy"}]
    assert isinstance(judged([pod], prove=True), Answering)


# ---- whatever stands there

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def _paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(path for key, item in inner for path in _paths(item, (*at, key)))]


@given(st.data())
def test_a_strange_pod_never_raises_and_a_half_never_answers(data: st.DataObject) -> None:
    pod = copy.deepcopy(data.draw(st.sampled_from([*HALVES, *NO_HALVES, vllm(hostNetwork=True)])))
    half = pod in HALVES
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(_paths(pod)[1:]))
        inside: Any = pod
        for key in path[:-1]:
            inside = inside[key]
        inside[path[-1]] = data.draw(JSON)
    members: list[Member] = [member_of(pod)]
    found = classify(members, data.draw(st.none() | st.just([])), prove_from_member=data.draw(st.booleans()))
    command_kept = pod.get("spec", {}) if isinstance(pod.get("spec"), dict) else {}
    first = (command_kept.get("containers") or [None])[0] if isinstance(command_kept.get("containers"), list) else None
    if (
        half
        and isinstance(first, dict)
        and any(first.get("args") == one["spec"]["containers"][0]["args"] for one in HALVES)
    ):
        assert isinstance(found, Unanswerable)


@given(JSON | st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), JSON))
def test_anything_at_all_is_a_member_that_holds(pod: Any) -> None:
    if isinstance(pod, Mapping):
        assert isinstance(classify([member_of(pod)], None, prove_from_member=True), Unanswerable)
