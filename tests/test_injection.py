"""What inject concludes of one object: engines, flags, graces, followers, warnings, verification."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from drainagent.catalogue import SGLANG
from drainagent.engine_container import Wanted
from drainagent.injection import Outcome, Request, extra_options, inject_into, remove_from, verify
from drainagent.patch import apply
from drainagent.podspec import AgentImage, Delivery
from drainagent.workloads import Member, at, objects, places

REQUEST = Request(image=AgentImage("corp/agent:1"))
MAIN = {"name": "main", "image": "corp/vllm-openai:v0.10.0", "command": ["vllm", "serve", "m"]}
SGLANG_MAIN = {"name": "main", "command": ["python3", "-m", "sglang.launch_server", "--enable-metrics"]}
SLEEP = {"preStop": {"exec": {"command": ["sleep", "15"]}}}


def deployment(*containers: dict[str, Any], metadata: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    template: dict[str, Any] = {"spec": {"containers": list(containers), **spec}}
    if metadata is not None:
        template["metadata"] = metadata
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, "spec": {"template": template}}


def injected(found: dict[str, Any], request: Request = REQUEST) -> dict[str, Any]:
    outcomes = inject_into(found, request)
    assert all(outcome.problem is None for outcome in outcomes), outcomes
    new = apply(found, [change for outcome in outcomes for change in outcome.changes])
    assert isinstance(new, dict)
    return new


def only(found: dict[str, Any], request: Request = REQUEST) -> Outcome:
    (outcome,) = inject_into(found, request)
    return outcome


def template_of(found: dict[str, Any]) -> dict[str, Any]:
    template = at(found, places(found)[0].path)
    assert isinstance(template, dict)
    return template


def hook_of(found: dict[str, Any], container: int = 0) -> list[str]:
    argv = at(template_of(found), ("spec", "containers", container, "lifecycle", "preStop", "exec", "command"))
    assert isinstance(argv, list)
    return argv


TEMPLATE = {"spec": {"containers": [MAIN]}}


@pytest.mark.parametrize(
    "found",
    [
        *({"kind": kind, "spec": {"template": TEMPLATE}} for kind in (
            "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "Job", "Rollout", "Unheard"
        )),
        {"kind": "CronJob", "spec": {"jobTemplate": {"spec": {"template": TEMPLATE}}}},
        {"kind": "Pod", **TEMPLATE},
        {"kind": "PodTemplate", "template": TEMPLATE},
        {"kind": "JobSet", "spec": {"replicatedJobs": [{"template": {"spec": {"template": TEMPLATE}}}]}},
        {"kind": "RoleSet", "spec": {"roles": [{"template": TEMPLATE}]}},
        {"kind": "StormService", "spec": {"template": {"spec": {"roles": [{"template": TEMPLATE}]}}}},
        {"kind": "LeaderWorkerSet", "spec": {"leaderWorkerTemplate": {"size": 1, "workerTemplate": TEMPLATE}}},
    ],
    ids=lambda found: found["kind"],
)  # fmt: skip
def test_every_place_of_a_pod_template(found: dict[str, Any]) -> None:
    assert hook_of(injected(found))[-2:] == ["--grace", "30"]


@pytest.mark.parametrize(
    "found",
    [
        {"kind": "Service", "apiVersion": "serving.knative.dev/v1", "spec": {"template": TEMPLATE}},
        {"kind": "ConfigMap", "data": {"template": "containers"}},
        {"kind": "Deployment", "spec": {"template": {"spec": {"containers": []}}}},
        {"kind": "Deployment", "spec": None},
        {},
    ],
)
def test_no_pod_template(found: dict[str, Any]) -> None:
    assert places(found) == ()


def test_lists_hold_objects() -> None:
    pod = {"kind": "Pod", **TEMPLATE}
    listed = {"kind": "List", "items": [pod, {"kind": "PodList", "items": [pod]}, None]}
    assert [path for path, _ in objects(listed)] == [("items", 0), ("items", 1, "items", 0)]
    assert list(objects(None)) == []


def test_what_is_said() -> None:
    outcome = only(deployment(MAIN))
    assert outcome.said == (
        "container main: vLLM on port 8000 (by its command line); hook; --enable-server-load-tracking added to its "
        "command; grace 30 s; agent by init-container"
    )
    assert outcome.notes[0].startswith("a request still running 25 s after the delete is cut (G 30 - 5)")


# ---- grace


@pytest.mark.parametrize(
    ("written", "asked", "grace_s", "note"),
    [
        (None, None, 30, ""),
        (None, 60, 60, ""),
        (None, 20, 30, "grace stays 30 s (Kubernetes' default)"),
        (45, None, 45, ""),
        (45, 90, 90, ""),
        (90, 45, 90, "grace stays 90 s (the manifest): --grace 45 never lowers it"),
        (10, 15, 15, ""),
    ],
)
def test_grace(written: int | None, asked: int | None, grace_s: int, note: str) -> None:
    found = deployment(MAIN)
    if written is not None:
        template_of(found)["spec"]["terminationGracePeriodSeconds"] = written
    request = Request(image=REQUEST.image, grace_s=asked)
    new = injected(found, request)
    assert template_of(new)["spec"]["terminationGracePeriodSeconds"] == grace_s
    assert hook_of(new)[-1] == str(grace_s)
    notes = only(found, request).notes
    assert any(line.startswith(note) for line in notes)


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (10, "terminationGracePeriodSeconds 10 is outside 15 to 3600: --grace raises it"),
        (0, "--grace raises it"),
        (7200, "7200 is outside 15 to 3600: lower it in the manifest"),
        ("60", "'60' must be a whole number"),
        (True, "True must be a whole number"),
    ],
)
def test_a_grace_that_is_none(written: Any, words: str) -> None:
    assert words in str(only(deployment(MAIN, terminationGracePeriodSeconds=written)).problem)


# ---- flags


def test_sglang_gets_its_metrics() -> None:
    bare = {"name": "main", "command": ["python3", "-m", "sglang.launch_server"], "args": ["--port", "81"]}
    new = injected(deployment(bare))
    assert template_of(new)["spec"]["containers"][0]["args"] == ["--port", "81", "--enable-metrics"]
    assert "http://127.0.0.1:81/metrics" in hook_of(new)
    shell = {"name": "main", "command": ["sh", "-c", "python3 -m sglang.launch_server"]}
    assert "--enable-metrics" in str(only(deployment(shell)).problem)
    fine = {"name": "main", "command": ["sh", "-c", "python3 -m sglang.launch_server --enable-metrics"]}
    assert only(deployment(fine)).problem is None


@pytest.mark.parametrize(
    ("container", "words"),
    [
        ({"command": ["sh", "-c", "vllm serve m"]}, "its command is no list"),
        ({**MAIN, "image": "corp/vllm-openai:v0.7.3"}, "vLLM has it from 0.8 on"),
        ({**MAIN, "args": ["--no-enable-server-load-tracking"]}, "--no-enable-server-load-tracking stays"),
        ({**MAIN, "args": ["--api-server-count", "4"]}, "4 API servers"),
        ({"command": ["vllm", "serve", "m", "--no-enable-server-load-tracking"]}, "stays"),
        ({**MAIN, "image": "rocm/vllm:rocm6.3.1_instinct_vllm0.6.6"}, "vLLM has it from 0.8 on"),
    ],
)
def test_load_tracking_left_out_is_a_note(container: dict[str, Any], words: str) -> None:
    outcome = only(deployment({**container, "name": "main"}))
    assert outcome.problem is None
    assert any(words in note for note in outcome.notes), outcome.notes
    assert "added to its command" not in outcome.said


def test_load_tracking_that_is_there() -> None:
    new = injected(deployment({**MAIN, "args": ["--enable-server-load-tracking"]}))
    assert template_of(new)["spec"]["containers"][0]["args"] == ["--enable-server-load-tracking"]


def test_an_image_with_args_alone() -> None:
    new = injected(deployment({"name": "main", "image": "vllm/vllm-openai:v0.9.1", "args": ["--model", "m"]}))
    main = template_of(new)["spec"]["containers"][0]
    assert main["args"] == ["--model", "m", "--enable-server-load-tracking"]
    new = injected(deployment({"name": "main", "image": "vllm/vllm-openai:v0.9.1"}))
    assert template_of(new)["spec"]["containers"][0]["args"] == ["--enable-server-load-tracking"]


def test_without_gauges_there_is_no_hook() -> None:
    assert "--disable-log-stats" in str(only(deployment({**MAIN, "args": ["--disable-log-stats"]})).problem)


# ---- listeners


def test_tls_and_several_listeners() -> None:
    tls = {**MAIN, "args": ["--ssl-keyfile", "k", "--ssl-certfile", "c"]}
    assert "https://127.0.0.1:8000/metrics" in hook_of(injected(deployment(tls)))
    args = ["--data-parallel-size", "2", "--data-parallel-size-local", "2", "--data-parallel-multi-port-external-lb"]
    assert hook_of(injected(deployment({**MAIN, "args": args}))).count("--url") == 2


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--uds", "/tmp/s"], "Unix socket /tmp/s"),
        (["--grpc"], "gRPC"),
        (["--headless"], "--leader URL or --leader-env NAME"),
    ],
)
def test_no_listener(args: list[str], words: str) -> None:
    assert words in str(only(deployment({**MAIN, "args": args})).problem)


def test_a_follower_outside_of_a_leaderworkerset() -> None:
    request = Request(image=REQUEST.image, leader=("--leader-env", "HEAD"))
    argv = hook_of(injected(deployment({**MAIN, "args": ["--headless"]}), request))
    assert argv[-4:] == ["--grace", "30", "--leader-env", "HEAD"]


def test_a_rank_that_is_set_where_it_runs() -> None:
    args = ["--nnodes", "2", "--node-rank", "$(RANK)"]
    assert "leads or follows" in str(only(deployment({**SGLANG_MAIN, "args": args})).problem)


# ---- LeaderWorkerSet


def leader_worker_set(leader: dict[str, Any] | None, worker: dict[str, Any], **leader_spec: Any) -> dict[str, Any]:
    inner: dict[str, Any] = {"size": 2, "workerTemplate": {"spec": {"containers": [worker]}}}
    if leader is not None:
        inner["leaderTemplate"] = {"spec": {"containers": [leader], **leader_spec}}
    return {"kind": "LeaderWorkerSet", "spec": {"leaderWorkerTemplate": inner}}


@pytest.mark.parametrize(
    "worker",
    [
        {"name": "w", "command": ["sh", "-c", "bash multi-node-serving.sh worker --ray_address=$(LWS_LEADER_ADDRESS)"]},
        {"name": "w", "command": ["vllm", "serve", "m", "--headless"]},
        {"name": "w", "command": ["ray", "start", "--block"], "image": "vllm/vllm-openai:v0.9.0"},
    ],
)
def test_workers_watch_their_leader(worker: dict[str, Any]) -> None:
    leader = {"name": "l", "command": ["sh", "-c", "bash x.sh leader; vllm serve m --port 8080"]}
    found = leader_worker_set(leader, worker, terminationGracePeriodSeconds=120)
    assert [place.member for place in places(found)] == [Member.LEADER, Member.WORKER]
    new = injected(found)
    inner = new["spec"]["leaderWorkerTemplate"]
    leaders = inner["leaderTemplate"]["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert leaders[-4:] == ["--url", "http://127.0.0.1:8080/metrics", "--grace", "120"]
    workers = inner["workerTemplate"]["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert workers[-4:] == ["--grace", "120", "--leader-env", "LWS_LEADER_ADDRESS"]
    assert "http://127.0.0.1:8080/metrics" in workers
    assert inner["workerTemplate"]["spec"]["terminationGracePeriodSeconds"] == 120
    assert all(outcome.problem is None for outcome in verify(new, REQUEST)), verify(new, REQUEST)


def test_sglang_workers_are_followers_by_being_workers() -> None:
    args = ["--nnodes", "2", "--node-rank", "$(LWS_WORKER_INDEX)"]
    new = injected(leader_worker_set({**SGLANG_MAIN, "args": args}, {**SGLANG_MAIN, "args": args}))
    worker = new["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"][0]
    assert "--leader-env" in worker["lifecycle"]["preStop"]["exec"]["command"]


HYBRID = [
    "--data-parallel-size", "16", "--data-parallel-size-local", "8", "--data-parallel-hybrid-lb",
    "--data-parallel-start-rank", "8",
]  # fmt: skip


@pytest.mark.parametrize("args", [HYBRID, ["--data-parallel-size", "2", "--data-parallel-rank", "$(LWS_WORKER_INDEX)"]])
def test_a_worker_that_serves_by_itself_has_an_engine_of_its_own(args: list[str]) -> None:
    new = injected(leader_worker_set(MAIN, {**MAIN, "args": args}))
    inner = new["spec"]["leaderWorkerTemplate"]
    worker = inner["workerTemplate"]["spec"]["containers"][0]
    assert "--leader-env" not in worker["lifecycle"]["preStop"]["exec"]["command"]
    alone = injected(leader_worker_set(None, {**MAIN, "args": HYBRID}))
    assert "--leader-env" not in json.dumps(alone)


def test_a_worker_has_its_leaders_grace_even_when_that_is_unset() -> None:
    found = leader_worker_set(MAIN, {"name": "w", "command": ["vllm", "serve", "m", "--headless"]})
    inner = found["spec"]["leaderWorkerTemplate"]
    inner["workerTemplate"]["spec"]["terminationGracePeriodSeconds"] = 20
    new = injected(found)["spec"]["leaderWorkerTemplate"]
    assert new["workerTemplate"]["spec"]["terminationGracePeriodSeconds"] == 30
    inner["workerTemplate"]["spec"]["terminationGracePeriodSeconds"] = 120
    assert not any("--grace" in note and "never" in note for one in inject_into(found, REQUEST) for note in one.notes)


def test_one_template_for_leader_and_workers_is_refused() -> None:
    assert "leaderTemplate" in str(only(leader_worker_set(None, MAIN)).problem)


def test_a_leader_without_an_engine_leaves_its_workers_alone() -> None:
    outcomes = inject_into(leader_worker_set({"name": "l", "command": ["nginx"]}, {"name": "w"}), REQUEST)
    assert [outcome.has_engine for outcome in outcomes] == [False, False]


# ---- hooks that are there


def test_another_hook_is_never_dropped() -> None:
    found = deployment({**MAIN, "lifecycle": SLEEP})
    problem = str(only(found).problem)
    assert "sleep 15" in problem
    assert "--replace-hook" in problem
    request = Request(image=REQUEST.image, replace_hook=True)
    new = injected(found, request)
    assert hook_of(new)[:2] == ["python3", "-ISB"]
    (outcome,) = remove_from(new)
    assert apply(new, outcome.changes) == found


def test_options_that_another_hand_gave_are_kept() -> None:
    new = injected(deployment(MAIN))
    template_of(new)["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"] += ["--termination-log"]
    extra = extra_options(new)
    (outcome,) = remove_from(new)
    clean = apply(new, outcome.changes)
    (outcome,) = inject_into(clean, REQUEST, extra)
    assert hook_of(apply(clean, outcome.changes)) == hook_of(new)
    # A hook written by hand keeps them too.
    own = {"preStop": {"exec": {"command": ["python3", "-m", "drainagent", "hook", "--settle", "9", "--grace", "1"]}}}
    assert hook_of(injected(deployment({**MAIN, "lifecycle": own})))[-4:] == ["--grace", "30", "--settle", "9"]


def test_a_hook_that_inject_did_not_write_is_not_taken_out() -> None:
    new = injected(deployment(MAIN))
    del template_of(new)["metadata"]
    (outcome,) = remove_from(new)
    assert "by hand" in str(outcome.problem)
    assert remove_from(deployment(MAIN)) == []


# ---- notes


@pytest.mark.parametrize(
    ("metadata", "warned"),
    [
        ({"labels": {"sidecar.istio.io/inject": "true"}}, True),
        ({"annotations": {"sidecar.istio.io/inject": "true", "sidecar.istio.io/nativeSidecar": "true"}}, False),
        ({"annotations": {"linkerd.io/inject": "enabled"}}, True),
        ({"annotations": {"linkerd.io/inject": "disabled"}}, False),
        ({}, False),
    ],
)
def test_a_mesh_without_native_sidecars(metadata: dict[str, Any], warned: bool) -> None:
    notes = only(deployment(MAIN, metadata=metadata)).notes
    assert any("Native sidecars" in note for note in notes) is warned


def test_other_notes() -> None:
    found = deployment(MAIN, {"name": "istio-proxy"}, shareProcessNamespace=True)
    notes = " ".join(only(found).notes)
    assert "Istio" in notes
    assert "shareProcessNamespace" in notes
    half = {**SGLANG_MAIN, "args": ["--disaggregation-mode", "decode"]}
    assert any("--grace 45" in note for note in only(deployment(half)).notes)
    asks = {**MAIN, "args": ["--ssl-certfile", "c", "--ssl-cert-reqs", "2"]}
    assert any("client certificate" in note for note in only(deployment(asks)).notes)
    prefill = {**MAIN, "args": ["--kv-transfer-config", '{"kv_role":"kv_producer"}']}
    assert any("--shutdown-timeout 30" in note for note in only(deployment(prefill)).notes)


def test_left_out_by_annotation() -> None:
    outcome = only(deployment(MAIN, metadata={"annotations": {"drainagent.io/inject": "false"}}))
    assert not outcome.has_engine
    assert not outcome.changes


def test_unsure_is_a_problem_until_the_user_says() -> None:
    script = deployment({"name": "main", "image": "corp/sglang", "command": ["/start.sh"]})
    assert "--engine and --port" in str(only(script).problem)
    request = Request(image=REQUEST.image, wanted=Wanted(engine=SGLANG, port=99))
    assert "http://127.0.0.1:99/metrics" in hook_of(injected(script, request))
    assert any("--enable-metrics must stand on it" in note for note in only(script, request).notes)


# ---- verify


def test_verify_takes_what_inject_made() -> None:
    for delivery in Delivery:
        image = None if delivery is Delivery.IN_IMAGE else REQUEST.image
        new = injected(deployment(MAIN), Request(delivery, image, grace_s=60))
        (outcome,) = verify(new, Request(delivery))
        assert outcome.problem is None
        (outcome,) = verify(new, Request(delivery, grace_s=90))
        assert "60 is below --grace 90" in str(outcome.problem)


def broken(how: str) -> dict[str, Any]:
    new = copy.deepcopy(injected(deployment(MAIN)))
    spec = template_of(new)["spec"]
    main = spec["containers"][0]
    argv = main["lifecycle"]["preStop"]["exec"]["command"]
    if how == "hook":
        del main["lifecycle"]
    elif how == "other":
        main["lifecycle"] = SLEEP
    elif how == "grace":
        spec["terminationGracePeriodSeconds"] = 60
    elif how == "unset":
        argv[argv.index("--grace") + 1] = "45"
        del spec["terminationGracePeriodSeconds"]
    elif how == "port":
        main["command"] += ["--port", "81"]
    elif how == "engine":
        argv[argv.index("vllm")] = "sglang"
    elif how == "volume":
        del spec["volumes"]
    elif how == "copier":
        del spec["initContainers"]
    elif how == "mount":
        del main["volumeMounts"]
    return new


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("hook", "has no drain hook"),
        ("other", "its preStop is sleep 15"),
        ("grace", "the hook's grace is 30, the Pod's terminationGracePeriodSeconds is 60"),
        ("unset", "the hook's grace is 45, the Pod's terminationGracePeriodSeconds is 30 (Kubernetes' default)"),
        ("port", "the hook's URL is http://127.0.0.1:8000/metrics, it should be http://127.0.0.1:81/metrics"),
        ("engine", "the hook's engine is SGLang, it should be vLLM"),
        ("volume", "no volume"),
        ("copier", "no init container"),
        ("mount", "does not mount"),
    ],
)
def test_verify_names_what_is_wrong(how: str, words: str) -> None:
    (outcome,) = verify(broken(how), Request())
    assert words in str(outcome.problem)


def test_verify_without_metrics() -> None:
    new = injected(deployment({"name": "main", "command": ["python3", "-m", "sglang.launch_server"]}))
    template_of(new)["spec"]["containers"][0]["command"].remove("--enable-metrics")
    (outcome,) = verify(new, Request())
    assert "without --enable-metrics" in str(outcome.problem)
