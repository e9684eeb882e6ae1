"""Names, labels and annotations of what is rendered: the one place that spells them. Pure.

Two ModelDeployments of one namespace can want one Service name (``a-b`` with role ``c``, ``a`` with role ``b-c``): the
first has it, and its owner reference tells whose it is. Pod names are generated and Kueue's groups have dots between
their parts, so neither can be shared.
"""

from __future__ import annotations

DOMAIN = "drainagent.io"

NAME_LABEL = "app.kubernetes.io/name"
#: The ModelDeployment's name.
INSTANCE_LABEL = "app.kubernetes.io/instance"
#: The role's name.
COMPONENT_LABEL = "app.kubernetes.io/component"
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
MANAGED_BY = "drainagent-operator"

#: Server, Prefill or Decode, as in the role.
ROLE_KIND_LABEL = f"{DOMAIN}/role-kind"
#: The replica's place in its role, from 0.
ORDINAL_LABEL = f"{DOMAIN}/ordinal"
#: The Pod's place in its replica, from 0, the leader. On replicas of several Pods.
MEMBER_INDEX_LABEL = f"{DOMAIN}/member-index"
#: What Services and routers select on: on the Pod of a replica that has the listener, until it is withdrawn.
SERVING_LABEL = f"{DOMAIN}/serving"
SERVING = "true"
#: How llm-d's endpoint picker tells the halves apart (llm-d-router, its prefill-filter and decode-filter).
LLM_D_ROLE_LABEL = "llm-d.ai/role"

#: What the user's spec decides of a Pod.
SPEC_HASH_ANNOTATION = f"{DOMAIN}/spec-hash"
#: On the ModelDeployment: another value replaces every replica.
ROLL_ANNOTATION = f"{DOMAIN}/roll"
#: On the ModelDeployment: tries a removal that was aborted again (operator_glue.retirement.retry).
RETRY_ANNOTATION = f"{DOMAIN}/retirement-retry"

SCRAPE_ANNOTATION = "prometheus.io/scrape"
SCHEME_ANNOTATION = "prometheus.io/scheme"
PORT_ANNOTATION = "prometheus.io/port"
PATH_ANNOTATION = "prometheus.io/path"
#: Where sglang-gateway finds the port that a prefill half hands its KV over on.
BOOTSTRAP_PORT_ANNOTATION = "sglang.ai/bootstrap-port"

#: Kueue 0.17.0, pkg/controller/constants and pkg/controller/jobs/pod/constants.
QUEUE_NAME_LABEL = "kueue.x-k8s.io/queue-name"
POD_GROUP_NAME_LABEL = "kueue.x-k8s.io/pod-group-name"
POD_GROUP_TOTAL_COUNT_ANNOTATION = "kueue.x-k8s.io/pod-group-total-count"
POD_GROUP_SERVING_ANNOTATION = "kueue.x-k8s.io/pod-group-serving"

#: In the container main of a replica of several Pods.
LEADER_ADDRESS_ENV = "DRAINAGENT_LEADER_ADDRESS"
REPLICA_SIZE_ENV = "DRAINAGENT_REPLICA_SIZE"
MEMBER_INDEX_ENV = "DRAINAGENT_MEMBER_INDEX"

#: The engine's container, always the first.
MAIN_CONTAINER = "main"
#: The routing proxy of a direct decoder.
PROXY_CONTAINER = "routing-proxy"


def role_service_name(deployment: str, role: str) -> str:
    """The Service that fronts a role."""
    return f"{deployment}-{role}"


def replica_name(deployment: str, role: str, ordinal: int) -> str:
    """A replica: its headless Service, and its Pods' subdomain."""
    return f"{deployment}-{role}-{ordinal}"


def member_hostname(replica: str, index: int) -> str:
    """The fixed hostname of a Pod in a replica of several."""
    return f"{replica}-{index}"


def leader_address(replica: str) -> str:
    """The leader's name as its followers resolve it: by the search path of their own namespace."""
    return f"{member_hostname(replica, 0)}.{replica}"


def pod_group_name(deployment: str, role: str, ordinal: int) -> str:
    """A replica's Pod group in Kueue, and so its Workload's name."""
    return f"{deployment}.{role}.{ordinal}"


def role_selector(deployment: str, role: str) -> dict[str, str]:
    """What the Pods of a role are told by."""
    return {INSTANCE_LABEL: deployment, COMPONENT_LABEL: role}


def role_labels(deployment: str, role: str) -> dict[str, str]:
    """What every object of a role bears."""
    return {**role_selector(deployment, role), MANAGED_BY_LABEL: MANAGED_BY}
