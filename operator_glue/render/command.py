"""The engine's command line of a role, and what it decides: listener, TLS, metrics. Pure.

What is concluded is read back from the rendered words by the agent's own reader (drainagent.engine_argv), so that
renderer, hook and check cannot disagree.

Sources: vLLM 0.32.0's engine/arg_utils.py (create_engine_config), entrypoints/cli/serve.py and
distributed/kv_transfer/kv_connector/v1/nixl/connector.py; SGLang 0.5.23's srt/arg_groups/fields/{parallel,disagg}.py.
tests/operator/engines asks both parsers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from drainagent.catalogue import SGLANG, VLLM, Engine
from drainagent.engine_argv import EngineCommand, given_flags, read_command
from drainagent.engine_container import LOAD_TRACKING_SINCE, SHUTDOWN_TIMEOUT_SINCE, image_release, literal_env
from drainagent.timeline import DEFAULT_GRACE_S
from operator_glue.facts import ClusterFacts
from operator_glue.model import EngineName, ModelDeployment, Role, RoleKind, RouterName
from operator_glue.names import LEADER_ADDRESS_ENV, MEMBER_INDEX_ENV, REPLICA_SIZE_ENV

#: The port that a role's Service, its router and its clients know; of a direct decoder it is the routing proxy's.
HTTP_PORT_NAME = "http"
#: Where the engine of a direct decoder listens, behind the proxy (llm-d's own manifests do the same).
DIRECT_ENGINE_PORT = 8200
#: Where a replica's Pods find each other. vLLM's default; SGLang has none.
VLLM_MASTER_PORT = 29501
SGLANG_DIST_INIT_PORT = 20000
#: SGLang's default for --disaggregation-bootstrap-port.
SGLANG_BOOTSTRAP_PORT = 8998

#: What vLLM moves KV with, and each half's part. kv_both is deprecated with it from 0.32.0 on.
KV_CONNECTOR = "NixlConnector"
_KV_ROLES = {RoleKind.PREFILL: "kv_producer", RoleKind.DECODE: "kv_consumer"}
#: The address a half tells the other one to fetch KV from. vLLM's default is localhost.
NIXL_HOST_ENV = "VLLM_NIXL_SIDE_CHANNEL_HOST"
#: Whoever gives one of them balances the data-parallel engines himself.
_BALANCE_FLAGS = (
    "--data-parallel-external-lb",
    "--data-parallel-hybrid-lb",
    "--data-parallel-multi-port-external-lb",
    "--data-parallel-rank",
    "--data-parallel-start-rank",
    "--data-parallel-size-local",
)
_ANY_ADDRESS = {4: ("0.0.0.0", "::", ""), 6: ("::", "")}
#: The kinds that do one half of a request each.
HALVES = (RoleKind.PREFILL, RoleKind.DECODE)


def engine_of(deployment: ModelDeployment) -> Engine:
    """The catalogue's entry for the deployment's engine."""
    return VLLM if deployment.spec.engine.name is EngineName.VLLM else SGLANG


def image_of(deployment: ModelDeployment, role: Role) -> str:
    """The engine's image of a role."""
    return role.image or deployment.spec.engine.image


def grace_s(role: Role) -> int | None:
    """The Pods' grace in seconds; None: left to Kubernetes, whose default is the same 30.

    Explicit on every role that has a hook, so that 30 and unset are the same Pods; on a take-over role it is left out
    in both cases, for the same reason.
    """
    given_s = role.termination_grace_period_seconds
    if role.command is not None:
        return None if given_s == DEFAULT_GRACE_S else given_s
    return DEFAULT_GRACE_S if given_s is None else given_s


def is_direct_decoder(deployment: ModelDeployment, role: Role) -> bool:
    """A decoder that llm-d-router's picks reach through a routing proxy in its own Pod."""
    router = deployment.spec.router
    return (
        router is not None
        and router.name is RouterName.LLM_D_ROUTER
        and role.kind is RoleKind.DECODE
        and deployment.spec.engine.name is EngineName.VLLM
        and role.command is None
    )


def front_port(deployment: ModelDeployment, role: Role) -> int:
    """The declared port: the one named http, else the first, else the engine's default. Clients ask it."""
    ports: list[Mapping[str, Any]] = role.ports
    named = (item for item in ports if item.get("name") == HTTP_PORT_NAME)
    port = next(named, ports[0] if ports else {}).get("containerPort")
    return engine_of(deployment).port if port is None else int(port)


def engine_port(deployment: ModelDeployment, role: Role) -> int:
    """Where the engine is told to listen: the declared port, or behind the proxy that has it."""
    declared = front_port(deployment, role)
    if not is_direct_decoder(deployment, role):
        return declared
    return DIRECT_ENGINE_PORT if declared != DIRECT_ENGINE_PORT else DIRECT_ENGINE_PORT + 1


def field_env(name: str, path: str) -> dict[str, Any]:
    """A variable with a field of the Pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def main_env(deployment: ModelDeployment, role: Role, leader_address: str, index: int) -> list[dict[str, Any]]:
    """The environment of the container main. The operator's own comes first, so that the user's can refer to it."""
    ours: list[dict[str, Any]] = []
    if role.size > 1:
        ours += [
            {"name": LEADER_ADDRESS_ENV, "value": leader_address},
            {"name": REPLICA_SIZE_ENV, "value": str(role.size)},
            {"name": MEMBER_INDEX_ENV, "value": str(index)},
        ]
    taken = {item["name"] for item in ours}
    theirs = [item for item in role.env if item.get("name") not in taken]
    moves_kv = role.kind in HALVES and role.command is None and engine_of(deployment) is VLLM
    if moves_kv and all(item.get("name") != NIXL_HOST_ENV for item in theirs):
        ours.append(field_env(NIXL_HOST_ENV, "status.podIP"))
    return [*ours, *theirs]


@dataclass(frozen=True)
class CommandLine:
    """The container's command and args. ``left_out``: flags the image's release does not have, and since which."""

    command: tuple[str, ...]
    args: tuple[str, ...]
    left_out: tuple[tuple[str, tuple[int, int]], ...] = ()


@dataclass
class _Flags:
    """Flags in front of the user's own, each rendered only where the user's do not hold it."""

    given: Mapping[str, str | bool]
    release: tuple[int, int] | None
    words: list[str] = field(default_factory=list)
    left_out: list[tuple[str, tuple[int, int]]] = field(default_factory=list)

    def add(self, flag: str, *value: str, since: tuple[int, int] | None = None) -> None:
        if flag in self.given:
            return
        if since is not None and self.release is not None and self.release < since:
            self.left_out.append((flag, since))
        else:
            self.words += [flag, *value]


def engine_command_line(deployment: ModelDeployment, role: Role, facts: ClusterFacts, index: int) -> CommandLine:
    """The command line of a member. The same for every replica and follower: what differs is in their environment."""
    if role.command is not None:
        return CommandLine(tuple(role.command), tuple(role.extra_args))
    engine, model = engine_of(deployment), deployment.spec.model.name
    given = given_flags(engine, role.extra_args, literal_env({"env": list(role.env)}))
    flags = _Flags(given, image_release({"image": image_of(deployment, role)}) if engine is VLLM else None)
    flags.add("--host", "::" if facts.pod_ip_family == 6 else "0.0.0.0")
    flags.add("--port", str(engine_port(deployment, role)))
    leader, rank = f"$({LEADER_ADDRESS_ENV})", f"$({MEMBER_INDEX_ENV})"
    if engine is SGLANG:
        flags.add("--enable-metrics")
        if role.kind in HALVES:
            flags.add("--disaggregation-mode", role.kind.value.lower())
        if role.size > 1:
            flags.add("--nnodes", str(role.size))
            flags.add("--node-rank", rank)
            flags.add("--dist-init-addr", f"{leader}:{SGLANG_DIST_INIT_PORT}")
        return CommandLine(
            ("python3", "-m", "sglang.launch_server"), ("--model-path", model, *flags.words, *role.extra_args)
        )
    flags.add("--enable-server-load-tracking", since=LOAD_TRACKING_SINCE)
    if role.kind in HALVES:
        _add_vllm_half(flags, role)
    override: tuple[str, ...] = ()
    if role.size > 1:
        flags.add("--nnodes", str(role.size))
        flags.add("--node-rank", rank)
        flags.add("--master-addr", leader)
        flags.add("--master-port", str(VLLM_MASTER_PORT))
        if index > 0:
            flags.add("--headless")
            # vLLM refuses a number of API servers beside --headless. Of a flag given twice the last one counts.
            override = ("--api-server-count", "0") if "--api-server-count" in given else ()
    return CommandLine(("vllm", "serve"), (model, *flags.words, *role.extra_args, *override), tuple(flags.left_out))


def _add_vllm_half(flags: _Flags, role: Role) -> None:
    """What makes a vLLM engine one half of a pair."""
    config = {"kv_connector": KV_CONNECTOR, "kv_role": _KV_ROLES[role.kind]}
    flags.add("--kv-transfer-config", json.dumps(config, separators=(",", ":")))
    if role.kind is RoleKind.PREFILL:
        # KV that the other half has still to fetch shows in no signal; only this flag waits for it.
        flags.add("--shutdown-timeout", str(grace_s(role)), since=SHUTDOWN_TIMEOUT_SINCE)
    engines = flags.given.get("--data-parallel-size")
    balances = any(flag in flags.given for flag in _BALANCE_FLAGS)
    # Within the Pod vLLM balances its engines, among Pods the router does: hybrid. Across Pods (size > 1) the leader
    # balances over all, since vLLM takes no hybrid balance beside the followers' --headless.
    if role.size == 1 and not balances and isinstance(engines, str) and engines.isdecimal() and int(engines) > 1:
        flags.add("--data-parallel-size-local", engines)
        flags.add("--data-parallel-hybrid-lb")


@dataclass(frozen=True)
class Listener:
    """What the Pod says of its engine's listener. ``ports``: where the hook looks; ``port`` is the scraper's.

    ``moved``: the user's flags put it elsewhere than the operator rendered, so that only the settle runs.
    ``probed``: the kubelet can ask it. ``bootstrap_port``: SGLang's, where a prefill half hands its KV over.
    ``command``: the command line as read back.
    """

    ports: tuple[int, ...]
    tls: bool
    moved: bool
    probed: bool
    bootstrap_port: int
    command: EngineCommand

    @property
    def port(self) -> int:
        return self.ports[0]

    @property
    def scheme(self) -> str:
        return "https" if self.tls else "http"


def listener(deployment: ModelDeployment, role: Role, facts: ClusterFacts) -> Listener | None:
    """The listener of a role's leader, read back from its command line; None for a take-over role."""
    if role.command is not None:
        return None
    line = engine_command_line(deployment, role, facts, 0)
    env = literal_env({"env": main_env(deployment, role, "leader", 0)})
    read = read_command([*line.command, *line.args], env)
    assert isinstance(read, EngineCommand), read  # it is our own command line
    port = engine_port(deployment, role)
    unread = {item.flag for item in read.unread}
    moved = (
        read.no_listener is not None
        or read.port != port
        or read.host not in _ANY_ADDRESS[facts.pod_ip_family]
        or bool(unread & {"--host", "--port", "--uds"})
    )
    return Listener(
        ports=(port,) if moved else read.ports,
        tls=read.asks_for_tls,
        moved=moved,
        probed=not moved and not read.client_certificate,
        bootstrap_port=_bootstrap_port(role, env),
        command=read,
    )


def _bootstrap_port(role: Role, env: Mapping[str, str]) -> int:
    given = given_flags(SGLANG, role.extra_args, env).get("--disaggregation-bootstrap-port")
    return int(given) if isinstance(given, str) and given.isdecimal() else SGLANG_BOOTSTRAP_PORT
