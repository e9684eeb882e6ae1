"""The webhooks' registrations at the API server. Pure.

All of them fail open. What the validating one alone can say, the operator says too, on the object and in an event, once
it reconciles it; and a failurePolicy of Fail would let our own absence keep a finalizer on an object, and so a
namespace from going. A Pod without a hook is better than no Pod.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from drainagent.engine_container import SKIP_WORDS
from operator_glue.model import GROUP
from operator_glue.names import DOMAIN, MANAGED_BY, MANAGED_BY_LABEL
from operator_glue.webhook.injection import INJECT_LABEL, OPT_IN

VALIDATING_NAME = "drainagent-modeldeployments"
MUTATING_NAME = "drainagent-inject"
VALIDATE_PATH = "/validate"
INJECT_PATH = "/inject"

#: What the API server waits for an answer: as long as each Pod of an opted-in namespace waits while we hang.
INJECT_TIMEOUT_S = 2
VALIDATE_TIMEOUT_S = 5

#: On every namespace, with its name (Kubernetes 1.22).
_NAMESPACE_NAME_LABEL = "kubernetes.io/metadata.name"
#: Nothing in there may hang on a Pod of the cluster itself.
SYSTEM_NAMESPACES = ("kube-node-lease", "kube-public", "kube-system")


@dataclass(frozen=True)
class Service:
    """Where the API server reaches the webhooks: a Service of the cluster."""

    namespace: str
    name: str
    port: int = 443

    def client(self, path: str) -> dict[str, Any]:
        return {"service": {"namespace": self.namespace, "name": self.name, "port": self.port, "path": path}}


@dataclass(frozen=True)
class Address:
    """The same outside of the cluster: ``base`` such as https://10.0.0.1:9443."""

    base: str

    def client(self, path: str) -> dict[str, Any]:
        return {"url": self.base + path}


def validating_configuration(
    target: Service | Address, *, ca_bundle: str = "", annotations: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """``ca_bundle``: PEM; empty, it is patched in later. ``annotations``: cert-manager's, where it patches it in."""
    hook = {
        "name": f"modeldeployments.{DOMAIN}",
        "clientConfig": _client(target, VALIDATE_PATH, ca_bundle),
        "rules": [
            {
                "apiGroups": [GROUP],
                "apiVersions": ["v1alpha1"],
                "operations": ["CREATE", "UPDATE"],
                "resources": ["modeldeployments"],
                "scope": "Namespaced",
            }
        ],
        "matchPolicy": "Equivalent",
        **_common(VALIDATE_TIMEOUT_S),
    }
    return _configuration("ValidatingWebhookConfiguration", VALIDATING_NAME, [hook], annotations)


def mutating_configuration(
    target: Service | Address,
    own_namespace: str,
    *,
    ca_bundle: str = "",
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Two webhooks, of which a Pod meets one at most: its namespace opted in, or it did by itself."""
    excluded = _expression(_NAMESPACE_NAME_LABEL, "NotIn", sorted({*SYSTEM_NAMESPACES, own_namespace}))
    others = _expression(MANAGED_BY_LABEL, "NotIn", [MANAGED_BY])  # a ModelDeployment's Pods are rendered with a hook
    by_namespace = (
        [_expression(INJECT_LABEL, "In", [OPT_IN]), excluded],
        [_expression(INJECT_LABEL, "NotIn", sorted(SKIP_WORDS)), others],
    )
    by_pod = (
        [_expression(INJECT_LABEL, "NotIn", [OPT_IN]), excluded],
        [_expression(INJECT_LABEL, "In", [OPT_IN]), others],
    )
    hooks = [
        {
            "name": f"{name}.inject.{DOMAIN}",
            "clientConfig": _client(target, INJECT_PATH, ca_bundle),
            "rules": [
                {
                    "apiGroups": [""],
                    "apiVersions": ["v1"],
                    "operations": ["CREATE"],
                    "resources": ["pods"],
                    "scope": "Namespaced",
                }
            ],
            "matchPolicy": "Equivalent",
            "reinvocationPolicy": "IfNeeded",
            "namespaceSelector": {"matchExpressions": namespaces},
            "objectSelector": {"matchExpressions": pods},
            **_common(INJECT_TIMEOUT_S),
        }
        for name, (namespaces, pods) in (("namespace", by_namespace), ("pod", by_pod))
    ]
    return _configuration("MutatingWebhookConfiguration", MUTATING_NAME, hooks, annotations)


def ca_patch(configuration: Mapping[str, Any], bundle: str) -> list[dict[str, Any]]:
    """RFC 6902 operations that give each webhook of a configuration this CA bundle (PEM); empty when they have it.

    They fail where the list of webhooks has changed meanwhile.
    """
    encoded = _encoded(bundle)
    operations: list[dict[str, Any]] = []
    for index, hook in enumerate(configuration.get("webhooks") or ()):
        if (hook.get("clientConfig") or {}).get("caBundle") != encoded:
            operations += [
                {"op": "test", "path": f"/webhooks/{index}/name", "value": hook["name"]},
                {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": encoded},
            ]
    return operations


def _common(timeout_s: int) -> dict[str, Any]:
    return {
        "admissionReviewVersions": ["v1"],
        "failurePolicy": "Ignore",
        "sideEffects": "None",
        "timeoutSeconds": timeout_s,
    }


def _client(target: Service | Address, path: str, ca_bundle: str) -> dict[str, Any]:
    return {**target.client(path), **({"caBundle": _encoded(ca_bundle)} if ca_bundle else {})}


def _encoded(pem: str) -> str:
    return base64.b64encode(pem.encode()).decode()


def _expression(key: str, operator: str, values: Sequence[str]) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


def _configuration(
    kind: str, name: str, hooks: Sequence[Mapping[str, Any]], annotations: Mapping[str, str] | None
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "labels": {MANAGED_BY_LABEL: MANAGED_BY}}
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": metadata,
        "webhooks": [dict(hook) for hook in hooks],
    }
