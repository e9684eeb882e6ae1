"""What a rendered object must be, whatever the shape; the shapes themselves are in golden/."""

from __future__ import annotations

import ast
import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from golden_files import FOLDER, Shape, engine_pods, rendered, shapes
from hypothesis import given
from hypothesis import strategies as st

import operator_glue
from drainagent.engine_argv import EngineCommand, read_command
from drainagent.engine_container import literal_env, words
from drainagent.hook_options import read_hook_arguments
from drainagent.injection import Request, verify
from drainagent.podspec import RECORD_ANNOTATION, AgentImage, Delivery, pre_stop_of, read_hook
from operator_glue import names
from operator_glue.facts import ClusterFacts
from operator_glue.model import MAX_NAMES_LENGTH, ModelDeployment, Role
from operator_glue.owned import OWNED_FLAGS, When
from operator_glue.render import RenderError, render, replica_objects, role_plan, role_service, spec_hash
from operator_glue.render.metadata import NO_UID

Object = dict[str, Any]
FACTS = ClusterFacts(agent_image=AgentImage("corp/agent:1"))


def deployment(*roles: Object, engine: str = "vLLM", router: str | None = None, **metadata: Any) -> ModelDeployment:
    spec: Object = {
        "model": {"name": "m"},
        "engine": {"name": engine, "image": f"corp/{engine.lower()}:1"},
        "roles": [{"name": f"role-{letter}", **role} for letter, role in zip("abcdefghij", roles, strict=False)],
    }
    if router is not None:
        spec["router"] = {"name": router, "image": "corp/router:1"}
    return ModelDeployment.model_validate(
        {
            "apiVersion": "drainagent.io/v1alpha1",
            "kind": "ModelDeployment",
            "metadata": {"name": "llama", "uid": "u", **metadata},
            "spec": spec,
        }
    )


def pods(one: ModelDeployment, facts: ClusterFacts = FACTS, ordinal: int = 0) -> list[Object]:
    """The Pods of one replica of the first role."""
    plan = role_plan(one, one.spec.roles[0], facts)
    return [item for item in replica_objects(plan, ordinal) if item["kind"] == "Pod"]


def pod(role: Object | None = None, facts: ClusterFacts = FACTS, **more: Any) -> Object:
    return pods(deployment(role or {}, **more), facts)[0]


def main_of(item: Object) -> Object:
    main: Object = item["spec"]["containers"][0]
    assert main["name"] == "main"
    return main


def argv(item: Object) -> list[str]:
    return [*words(main_of(item)["command"]), *words(main_of(item).get("args"))]


def bytes_of(objects: Any) -> bytes:
    return json.dumps(objects).encode()


def golden_pods() -> list[tuple[Shape, Object]]:
    return [(shape, item) for shape in shapes() for item in engine_pods(shape)]


def shape_id(value: Any) -> str:
    return str(value) if isinstance(value, Shape) else value["metadata"]["generateName"]


# ---- purity


def test_the_same_input_gives_the_same_bytes() -> None:
    for shape in shapes():
        again = ModelDeployment.model_validate(yaml.safe_load((FOLDER / f"{shape}.yaml").read_text()))
        first, second = render(shape.deployment, shape.facts), render(again, shape.facts)
        assert bytes_of(first.objects) == bytes_of(second.objects)
        assert first.warnings == second.warnings


def test_no_two_objects_share_a_part() -> None:
    """A caller may change what it was given."""

    def parts(data: Any) -> Iterator[int]:
        if isinstance(data, (dict, list)):
            yield id(data)
            for item in data.values() if isinstance(data, dict) else data:
                yield from parts(item)

    for shape in shapes():
        given = [
            [role.env, role.ports, role.resources, role.volume_mounts, list(dict(role.template.spec).values())]
            for role in shape.deployment.spec.roles
        ]
        # Both at once: an id is told apart from others only while its object lives.
        objects = (*rendered(shape).objects, *rendered(shape).objects)
        found = [part for item in objects for part in parts(item)]
        assert len(found) == len(set(found)), shape
        assert not set(found) & set(parts(given)), shape


def test_nothing_of_the_renderer_can_reach_a_clock_or_the_machine() -> None:
    allowed = {"__future__", "collections", "contextlib", "dataclasses", "enum", "gc", "hashlib", "json", "typing"}
    allowed |= {"ast", "yaml"}
    package = Path(operator_glue.__file__).parent
    for path in [package / "names.py", package / "facts.py", package / "warnings.py", *package.glob("render/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            found = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in found:
                assert name.partition(".")[0] in {*allowed, "drainagent", "operator_glue"}, f"{path.name}: {name}"


# ---- grace and spec hash


@pytest.mark.parametrize("engine", ["vLLM", "SGLang"])
@pytest.mark.parametrize("kind", ["Server", "Prefill", "Decode", "take-over"])
@pytest.mark.parametrize("size", [1, 2])
def test_grace_30_and_unset_are_the_same_pods(engine: str, kind: str, size: int) -> None:
    role: Object = {"command": ["./serve"]} if kind == "take-over" else {"kind": kind}
    role["size"] = size
    unset = deployment(role, engine=engine)
    written = deployment({**role, "terminationGracePeriodSeconds": 30}, engine=engine)
    assert bytes_of(render(unset, FACTS).objects) == bytes_of(render(written, FACTS).objects)
    assert spec_hash(unset, unset.spec.roles[0]) == spec_hash(written, written.spec.roles[0])


@pytest.mark.parametrize(("given_s", "written_s"), [(None, 30), (15, 15), (30, 30), (3600, 3600)])
def test_grace_is_explicit_on_the_pod_and_on_its_hook(given_s: int | None, written_s: int) -> None:
    role = {} if given_s is None else {"terminationGracePeriodSeconds": given_s}
    item = pod(role)
    hook = read_hook(pre_stop_of(main_of(item)))
    assert item["spec"]["terminationGracePeriodSeconds"] == written_s
    assert hook is not None
    assert hook.grace_s == str(written_s)


def test_a_take_over_role_has_its_grace_as_given_or_kubernetes_own() -> None:
    assert "terminationGracePeriodSeconds" not in pod({"command": ["./serve"]})["spec"]
    given = pod({"command": ["./serve"], "terminationGracePeriodSeconds": 31})
    assert given["spec"]["terminationGracePeriodSeconds"] == 31


#: One edit each, of a role that has none of them; what Pods they change is read off the Pods.
EDITS: dict[str, Object] = {
    "kind": {"kind": "Prefill"},
    "replicas": {"replicas": 5},
    "size": {"size": 2},
    "image": {"image": "corp/other:1"},
    "image-as-the-engine's": {"image": "corp/vllm:1"},
    "command": {"command": ["./serve"]},
    "extraArgs": {"extraArgs": ["--seed=1"]},
    "env": {"env": [{"name": "A", "value": "b"}]},
    "ports": {"ports": [{"containerPort": 9000}]},
    "resources": {"resources": {"limits": {"cpu": "1"}}},
    "volumeMounts": {"volumeMounts": [{"name": "a", "mountPath": "/a"}]},
    "terminationGracePeriodSeconds": {"terminationGracePeriodSeconds": 31},
    "queueName": {"queueName": "gpus"},
    "template": {"template": {"spec": {"nodeSelector": {"a": "b"}}}},
    "template-of-nothing": {"template": {"metadata": {"labels": {}}, "spec": {}}},
}


def without_hash(objects: list[Object]) -> bytes:
    plain = copy.deepcopy(objects)
    for item in plain:
        del item["metadata"]["annotations"][names.SPEC_HASH_ANNOTATION]
    return bytes_of(plain)


def test_every_field_of_a_role_has_an_edit() -> None:
    aliases = {item.alias for item in Role.model_fields.values()} - {"name"}
    assert {name.partition("-")[0] for name in EDITS} == aliases


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_the_hash_changes_exactly_when_the_pods_do(edit: Object) -> None:
    before, after = deployment({}), deployment(edit)
    changed = without_hash(pods(before)) != without_hash(pods(after))
    assert (spec_hash(before, before.spec.roles[0]) != spec_hash(after, after.spec.roles[0])) is changed


def test_other_parts_of_the_spec_change_the_hash_exactly_when_they_change_the_pods() -> None:
    decoder = {"kind": "Decode"}
    plain = deployment(decoder, {"kind": "Prefill"})
    others = {
        "another role": deployment(decoder, {"kind": "Prefill", "extraArgs": ["--seed=1"]}),
        "a router that needs nothing": deployment(decoder, {"kind": "Prefill"}, router="vllm-router"),
        "llm-d": deployment(decoder, {"kind": "Prefill"}, router="llm-d-router"),
        "llm-d and TLS on the other half": deployment(
            decoder, {"kind": "Prefill", "extraArgs": ["--ssl-certfile=/c"]}, router="llm-d-router"
        ),
        "a roll": deployment(decoder, {"kind": "Prefill"}, annotations={names.ROLL_ANNOTATION: "1"}),
    }
    hashes = {name: spec_hash(one, one.spec.roles[0]) for name, one in {"plain": plain, **others}.items()}
    assert hashes["another role"] == hashes["a router that needs nothing"] == hashes["plain"]
    assert without_hash(pods(others["a router that needs nothing"])) == without_hash(pods(plain))
    assert len({hashes[name] for name in ("plain", "llm-d", "llm-d and TLS on the other half", "a roll")}) == 4
    assert without_hash(pods(others["llm-d"])) != without_hash(pods(others["llm-d and TLS on the other half"]))


def test_the_operators_settings_change_no_hash() -> None:
    one = deployment({"kind": "Decode", "size": 2}, router="llm-d-router")
    role = one.spec.roles[0]
    settings = [
        FACTS,
        replace(FACTS, agent_image=AgentImage("corp/agent:2")),
        replace(FACTS, delivery=Delivery.IN_IMAGE, own_python=True),
        replace(FACTS, kubernetes=(1, 28), routing_proxy_image="corp/proxy:2"),
        replace(FACTS, pod_ip_family=6),
    ]
    seen = {
        item["metadata"]["annotations"][names.SPEC_HASH_ANNOTATION] for facts in settings for item in pods(one, facts)
    }
    assert seen == {spec_hash(one, role)}


def test_the_hash_is_what_it_was() -> None:
    """A change of the renderer that changes it replaces every replica in every cluster: never by accident."""
    plain = deployment({})
    assert spec_hash(plain, plain.spec.roles[0]) == "558052bd148120c1"


# ---- what the Pods say


@pytest.mark.parametrize(("shape", "item"), golden_pods(), ids=shape_id)
def test_a_rendered_hook_is_the_one_that_inject_would_give(shape: Shape, item: Object) -> None:
    hook = read_hook(pre_stop_of(main_of(item)))
    if hook is None:
        assert main_of(item)["command"][0] == "/opt/serve.sh"
        return
    _, wrong = read_hook_arguments(hook.argv()[4:])
    assert wrong == ()
    assert RECORD_ANNOTATION not in item["metadata"]["annotations"]
    if shape.name == "moved-listener" or shape.facts.pod_ip_family == 6:
        return  # inject follows a listener that moves, and reads 127.0.0.1
    (outcome,) = verify(item, Request(delivery=shape.facts.delivery, image=None, leader=hook.leader))
    if hook.leader:
        assert hook.urls == ()
        assert outcome.problem is None or "URL" in outcome.problem
    else:
        assert outcome.problem is None


@pytest.mark.parametrize(("shape", "item"), golden_pods(), ids=shape_id)
def test_the_annotations_name_the_listener_that_the_command_line_gives(shape: Shape, item: Object) -> None:
    annotations = item["metadata"]["annotations"]
    read = read_command(argv(item), literal_env(main_of(item)))
    scraped = names.PORT_ANNOTATION in annotations
    if shape.name == "moved-listener":
        assert annotations[names.PORT_ANNOTATION] == "8000"
        return
    if not isinstance(read, EngineCommand) or read.no_listener is not None:
        assert not scraped
        return
    assert annotations[names.PORT_ANNOTATION] == str(read.port)
    assert annotations[names.SCHEME_ANNOTATION] == ("https" if read.tls else "http")
    assert annotations[names.PATH_ANNOTATION] == "/metrics"
    assert read.metrics
    hook = read_hook(pre_stop_of(main_of(item)))
    assert hook is not None
    assert all(url.endswith(f":{read.port}/metrics") for url in hook.urls)


@pytest.mark.parametrize(
    ("flags", "scheme"),
    [
        ([], "http"),
        (["--ssl-certfile", "/c"], "https"),
        (["--ssl-keyfile=/k"], "https"),
        (["--ssl-keyfile=$(KEY)"], "https"),
        (["--ssl-ca-certs", "/ca"], "http"),
        (["--ssl-cert-reqs", "2"], "http"),
        (["--enable-ssl-refresh"], "http"),
    ],
)
def test_https_exactly_with_a_certificate_or_a_key(flags: list[str], scheme: str) -> None:
    item = pod({"extraArgs": flags, "env": [{"name": "KEY", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]})
    hook = read_hook(pre_stop_of(main_of(item)))
    assert hook is not None
    assert item["metadata"]["annotations"][names.SCHEME_ANNOTATION] == scheme
    assert hook.urls == (f"{scheme}://127.0.0.1:8000/metrics",)
    assert main_of(item)["startupProbe"]["httpGet"]["scheme"] == scheme.upper()


@pytest.mark.parametrize(
    "flags",
    [
        ["--port", "9000"],
        ["--por=9000"],
        ["--port", "$(PORT)"],
        ["--host", "127.0.0.1"],
        ["--uds", "/run/s"],
        ["--grpc"],
        ["--ssl-certfile=/c", "--ssl-keyfile=/k", "--ssl-cert-reqs=2"],
    ],
)
def test_no_probe_where_the_kubelet_would_find_nobody(flags: list[str]) -> None:
    main = main_of(pod({"extraArgs": flags}))
    assert not {"startupProbe", "readinessProbe", "livenessProbe"} & set(main)
    hook = read_hook(pre_stop_of(main))
    assert hook is not None
    assert hook.urls[0].endswith("://127.0.0.1:8000/metrics")


@pytest.mark.parametrize(
    "flags", [["--port", "8000"], ["--host", "0.0.0.0"], ["--host=::"], ["--host", "::", "--port=8000"]]
)
def test_a_listener_that_is_said_and_not_moved_is_probed(flags: list[str]) -> None:
    item = pod({"extraArgs": flags})
    assert main_of(item)["startupProbe"]["httpGet"]["port"] == 8000
    assert sum(word.startswith("--port") for word in argv(item)) == 1
    assert sum(word.startswith("--host") for word in argv(item)) == 1


def test_start_up_may_take_an_hour() -> None:
    probe = main_of(pod())["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == 3600


@pytest.mark.parametrize(("family", "host", "loopback"), [(4, "0.0.0.0", "127.0.0.1"), (6, "::", "[::1]")])
@pytest.mark.parametrize(("engine", "port"), [("vLLM", 8000), ("SGLang", 30000)])
def test_the_listener_by_ip_family(family: int, host: str, loopback: str, engine: str, port: int) -> None:
    item = pod({}, replace(FACTS, pod_ip_family=family), engine=engine)
    read = read_command(argv(item))
    hook = read_hook(pre_stop_of(main_of(item)))
    assert isinstance(read, EngineCommand)
    assert (read.host, read.port) == (host, port)
    assert hook is not None
    assert hook.urls == (f"http://{loopback}:{port}/metrics",)


def test_load_tracking_is_on_unless_it_is_turned_off() -> None:
    assert "--enable-server-load-tracking" in argv(pod())
    off = argv(pod({"extraArgs": ["--no-enable-server-load-tracking"]}))
    assert "--enable-server-load-tracking" not in off


def test_every_flag_that_a_role_may_not_give_is_given_by_the_operator() -> None:
    for engine in ("vLLM", "SGLang"):
        size_one = pods(deployment({"kind": "Prefill"}, engine=engine))
        several = pods(deployment({"kind": "Prefill", "size": 2}, engine=engine))
        for owned in OWNED_FLAGS:
            if engine not in owned.names or (owned.flag == "--model" and engine == "vLLM"):
                continue  # vLLM's model is the first word
            given = {word for item in (several if owned.when is When.SEVERAL_PODS else size_one) for word in argv(item)}
            assert owned.names[engine] in given, owned.flag


def test_a_prefill_half_waits_for_the_kv_that_it_owes() -> None:
    role = {"kind": "Prefill", "terminationGracePeriodSeconds": 90}
    read = read_command(argv(pod(role)))
    own = read_command(argv(pod({**role, "extraArgs": ["--shutdown-timeout", "0"]})))
    other = read_command(argv(pod({"kind": "Decode"})))
    assert isinstance(read, EngineCommand)
    assert isinstance(own, EngineCommand)
    assert isinstance(other, EngineCommand)
    assert (read.shutdown_timeout, own.shutdown_timeout, other.shutdown_timeout) == (90, 0, 0)


@pytest.mark.parametrize(
    ("extra", "balance"),
    [
        (["--data-parallel-size=1"], "internal"),
        (["--data-parallel-size=2"], "hybrid"),
        (["-dp", "2"], "hybrid"),
        (["-dp", "2", "--data-parallel-multi-port-external-lb", "-dpl=2"], "multi-port"),
        (["-dp", "2", "--data-parallel-rank", "1"], "external"),
    ],
)
def test_a_half_with_several_engines_is_balanced_by_its_router(extra: list[str], balance: str) -> None:
    read = read_command(argv(pod({"kind": "Decode", "extraArgs": extra})))
    assert isinstance(read, EngineCommand)
    assert read.balance == balance
    server = read_command(argv(pod({"extraArgs": ["--data-parallel-size=2"]})))
    assert isinstance(server, EngineCommand)
    assert server.balance == "internal"


def test_every_listener_of_a_pod_is_read() -> None:
    extra = ["-dp", "2", "-dpl", "2", "--data-parallel-multi-port-external-lb"]
    one = deployment({"kind": "Decode", "extraArgs": extra}, router="llm-d-router")
    item = pods(one)[0]
    hook = read_hook(pre_stop_of(main_of(item)))
    assert hook is not None
    assert hook.urls == ("http://127.0.0.1:8200/metrics", "http://127.0.0.1:8201/metrics")
    proxy = next(item for item in item["spec"]["initContainers"] if item["name"] == names.PROXY_CONTAINER)
    assert "--data-parallel-size=2" in proxy["args"]


# ---- replicas of several Pods


@pytest.mark.parametrize("engine", ["vLLM", "SGLang"])
def test_the_members_of_a_replica_know_each_other(engine: str) -> None:
    one = deployment({"size": 3, "replicas": 2}, engine=engine)
    role = one.spec.roles[0]
    service, *members = replica_objects(role_plan(one, role, FACTS), 1)
    name = service["metadata"]["name"]
    assert (service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]) == ("None", True)
    leader = f"{members[0]['spec']['hostname']}.{name}"
    fronted = role_service(one, role)["spec"]["selector"].items()
    for index, member in enumerate(members):
        spec, labels, main = member["spec"], member["metadata"]["labels"], main_of(member)
        assert service["spec"]["selector"].items() <= labels.items()
        assert (fronted <= labels.items()) is (index == 0)
        assert (spec["hostname"], spec["subdomain"]) == (f"{name}-{index}", name)
        assert labels[names.MEMBER_INDEX_LABEL] == str(index)
        env = literal_env(main)
        assert env["DRAINAGENT_LEADER_ADDRESS"] == leader
        assert (env["DRAINAGENT_REPLICA_SIZE"], env["DRAINAGENT_MEMBER_INDEX"]) == ("3", str(index))
        read = read_command(argv(member), env)
        assert isinstance(read, EngineCommand)
        assert read.node_rank == index
        assert (read.no_listener is None) is (index == 0)
        hook = read_hook(pre_stop_of(main))
        assert hook is not None
        assert hook.leader == (() if index == 0 else ("--leader", f"http://{leader}:{read.port}/metrics"))
        assert bool(hook.urls) is (index == 0)
        assert ("startupProbe" in main) is (index == 0)
        assert (names.PORT_ANNOTATION in member["metadata"]["annotations"]) is (index == 0)


def test_a_follower_starts_no_api_server() -> None:
    """vLLM refuses --headless beside a number of API servers, which the leader's user may well set."""
    extra = ["--data-parallel-size=4", "--api-server-count", "1"]
    leader, follower = pods(deployment({"size": 2, "extraArgs": extra}))
    first, second = read_command(argv(leader)), read_command(argv(follower), literal_env(main_of(follower)))
    assert isinstance(first, EngineCommand)
    assert isinstance(second, EngineCommand)
    assert (first.api_server_count, second.api_server_count) == (1, 0)
    assert argv(follower)[-2:] == ["--api-server-count", "0"]


def test_a_replica_is_the_same_by_itself_and_among_all() -> None:
    one = deployment({"replicas": 12, "size": 2, "queueName": "gpus"})
    plan = role_plan(one, one.spec.roles[0], FACTS)
    alone = [item for ordinal in range(12) for item in replica_objects(plan, ordinal)]
    assert bytes_of(alone) == bytes_of(render(one, FACTS).objects[1:])
    groups = {item["metadata"]["labels"][names.POD_GROUP_NAME_LABEL] for item in alone if item["kind"] == "Pod"}
    assert groups == {f"llama.role-a.{ordinal}" for ordinal in range(12)}


def test_the_longest_names_are_names() -> None:
    role = "r" * 20
    one = deployment(
        {"name": role, "size": 64, "replicas": 1024, "queueName": "q"}, name="d" * (MAX_NAMES_LENGTH - len(role))
    )
    service, *members = replica_objects(role_plan(one, one.spec.roles[0], FACTS), 1023)
    last = members[-1]
    assert len(last["spec"]["hostname"]) == 63
    assert len(service["metadata"]["name"]) <= 63
    assert all(len(value) <= 63 for value in last["metadata"]["labels"].values())


# ---- the rest


def test_the_users_environment_can_refer_to_the_operators() -> None:
    role = {"size": 2, "env": [{"name": "MASTER", "value": "$(DRAINAGENT_LEADER_ADDRESS)"}]}
    env = main_of(pod(role))["env"]
    assert [item["name"] for item in env][-1] == "MASTER"
    assert literal_env({"env": env})["MASTER"] == "llama-role-a-0-0.llama-role-a-0"


def test_a_half_tells_the_other_one_its_own_address() -> None:
    assert main_of(pod({"kind": "Decode"}))["env"][0]["name"] == "VLLM_NIXL_SIDE_CHANNEL_HOST"
    own = main_of(pod({"kind": "Decode", "env": [{"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "value": "a"}]}))
    assert own["env"] == [{"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "value": "a"}]
    assert "env" not in main_of(pod({"kind": "Decode"}, engine="SGLang"))


def test_a_follower_never_serves_whatever_the_overlay_says() -> None:
    labels = {"drainagent.io/serving": "true", "drainagent.io/mine": "x", "team": "a"}
    _, follower = pods(deployment({"size": 2, "template": {"metadata": {"labels": labels}}}))
    assert names.SERVING_LABEL not in follower["metadata"]["labels"]
    assert "drainagent.io/mine" not in follower["metadata"]["labels"]
    assert follower["metadata"]["labels"]["team"] == "a"


def test_the_agent_in_the_image_adds_nothing_but_the_hook() -> None:
    spec = pod({}, replace(FACTS, delivery=Delivery.IN_IMAGE))["spec"]
    assert set(spec) == {"terminationGracePeriodSeconds", "containers"}


def test_a_name_that_the_agent_needs_is_refused_with_its_path() -> None:
    role = {"template": {"spec": {"volumes": [{"name": "drainagent", "emptyDir": {}}]}}}
    with pytest.raises(RenderError, match=r"^spec\.roles\[0\]: spec\.volumes has an entry named drainagent") as caught:
        render(deployment(role), FACTS)
    assert caught.value.path == "spec.roles[0]"


def test_what_no_cluster_has_seen_says_so() -> None:
    one = deployment({}, uid=None)
    rendering = render(one, FACTS)
    assert [warning.path for warning in rendering.warnings] == ["metadata.uid"]
    assert all(item["metadata"]["ownerReferences"][0]["uid"] == NO_UID for item in rendering.objects)


def test_what_no_object_can_hold_is_refused_with_its_path() -> None:
    role = {"template": {"spec": {"affinity": {"weight": {1, 2}}}}}
    with pytest.raises(RenderError, match=r"^spec\.roles\[0\]: set \{1, 2\} is nothing that a Kubernetes object"):
        role_plan(one := deployment(role), one.spec.roles[0], FACTS)


def test_numbers_and_nothing_stay_what_they_are() -> None:
    odd: Object = {"whole": 1, "part": 0.5, "yes": True, "nothing": None, "none": [], "empty": {}, "text": "'\\\n\x00é"}
    assert pod({"template": {"spec": {"affinity": odd}}})["spec"]["affinity"] == odd


def test_a_role_without_replicas_keeps_its_service() -> None:
    objects = render(deployment({"replicas": 0}), FACTS).objects
    assert [item["kind"] for item in objects] == ["Service"]


def test_the_docs_spell_the_flags_as_they_are_rendered() -> None:
    text = " ".join((Path(__file__).parents[2] / "docs" / "rendering.md").read_text().split())
    for engine in ("vLLM", "SGLang"):
        roles: list[Object] = [{"kind": "Prefill", "size": 2}, {"kind": "Decode", "extraArgs": ["-dp=2"]}]
        for role in roles:
            for member in pods(deployment(role, engine=engine)):
                for word in argv(member):
                    assert not word.startswith(("--", "{", "$(")) or word in text, word


EXTRA = [
    ["--port", "9000"],
    ["--host=::1"],
    ["--ssl-certfile=/c"],
    ["--uds", "/s"],
    ["--data-parallel-size", "2"],
    ["-asc=1"],
]


@given(
    st.sampled_from(["vLLM", "SGLang"]),
    st.sampled_from(["Server", "Prefill", "Decode"]),
    st.integers(1, 3),
    st.integers(0, 1023),
    st.lists(st.sampled_from(EXTRA[:3]), max_size=3),
    st.sampled_from([4, 6]),
    st.sampled_from(list(Delivery)),
)
def test_hook_annotations_and_grace_always_agree(
    engine: str, kind: str, size: int, ordinal: int, extra: list[list[str]], family: int, delivery: Delivery
) -> None:
    role = {"kind": kind, "size": size, "extraArgs": [word for words_ in extra for word in words_]}
    facts = replace(FACTS, pod_ip_family=family, delivery=delivery)
    for index, item in enumerate(pods(deployment(role, engine=engine), facts, ordinal)):
        hook = read_hook(pre_stop_of(main_of(item)))
        assert hook is not None
        assert hook.grace_s == str(item["spec"]["terminationGracePeriodSeconds"])
        annotations, labels = item["metadata"]["annotations"], item["metadata"]["labels"]
        assert labels[names.ORDINAL_LABEL] == str(ordinal)
        assert item["metadata"]["generateName"] == f"llama-role-a-{ordinal}-"
        if index == 0:
            assert hook.urls[0].startswith(annotations[names.SCHEME_ANNOTATION] + "://")
            assert hook.urls[0].endswith(f":{annotations[names.PORT_ANNOTATION]}/metrics")
        else:
            leader = f"llama-role-a-{ordinal}-0.llama-role-a-{ordinal}"
            assert f"://{leader}:" in hook.leader[1]
