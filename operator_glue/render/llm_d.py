"""What llm-d-router needs of engine Pods: its role label, and the routing proxy of a direct decoder. Pure.

Sources: llm-d-router 0.10.0's pkg/sidecar/proxy/options.go (the proxy's flags), its prefill-filter and decode-filter
(the label), and llm-d's guides/pd-disaggregation (the ports).
"""

from __future__ import annotations

from typing import Any

from operator_glue.facts import ClusterFacts
from operator_glue.model import ModelDeployment, Role, RoleKind, RouterName
from operator_glue.names import PROXY_CONTAINER
from operator_glue.render.command import HTTP_PORT_NAME, Listener, front_port, listener

#: The proxy's protocol between the halves; it goes with vLLM's NixlConnector.
KV_PROTOCOL = "nixlv2"


def llm_d_role(deployment: ModelDeployment, role: Role) -> str | None:
    """The label's value on the role's Pods; None where nothing reads it."""
    router = deployment.spec.router
    if router is None or router.name is not RouterName.LLM_D_ROUTER or role.kind is RoleKind.SERVER:
        return None
    return str(role.kind.value).lower()


def prefill_tls(deployment: ModelDeployment) -> bool:
    """A prefill half of the deployment serves TLS, so that the decoders' proxies must ask for it so."""
    found = (
        listener(deployment, role, ClusterFacts()) for role in deployment.spec.roles if role.kind is RoleKind.PREFILL
    )
    return any(item is not None and item.tls for item in found)


def routing_proxy(
    deployment: ModelDeployment, role: Role, facts: ClusterFacts, engine: Listener, security: dict[str, Any]
) -> dict[str, Any]:
    """The proxy on the declared port, in front of the engine. A native sidecar where the cluster has them.

    ``security``: its security context.
    """
    port = front_port(deployment, role)
    args = [
        f"--port={port}",
        f"--vllm-port={engine.port}",
        f"--kv-connector={KV_PROTOCOL}",
        "--secure-proxy=false",
    ]
    if len(engine.ports) > 1:
        args.append(f"--data-parallel-size={len(engine.ports)}")
    tls = [*(["prefiller"] if prefill_tls(deployment) else []), *(["decoder"] if engine.tls else [])]
    if tls:
        args += [f"--enable-tls={','.join(tls)}", f"--tls-insecure-skip-verify={','.join(tls)}"]
    proxy: dict[str, Any] = {"name": PROXY_CONTAINER, "image": facts.routing_proxy_image, "args": args}
    if facts.native_sidecars:
        proxy["restartPolicy"] = "Always"
    declared = [item for item in role.ports if item.get("containerPort") == port]
    proxy["ports"] = declared or [{"name": HTTP_PORT_NAME, "containerPort": port}]
    proxy["securityContext"] = security
    return proxy
