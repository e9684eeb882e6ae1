"""The ModelDeployment resource, typed: the one source of its schema, its rules, its defaults and its documentation.

Pure. Field docstrings are what ``kubectl explain`` shows. What a schema cannot say but CEL can is a ``Rule`` beside the
fields it is about; what neither can say is in operator_glue.admission.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from drainagent.timeline import DEFAULT_GRACE_S, MAX_GRACE_S, MIN_GRACE_S
from operator_glue.owned import OWNED_ENV_PREFIX, OWNED_FLAGS, OwnedFlag, When, refusal

GROUP, VERSION, KIND = "drainagent.io", "v1alpha1", "ModelDeployment"
API_VERSION = f"{GROUP}/{VERSION}"
PLURAL, SINGULAR, SHORT_NAME = "modeldeployments", "modeldeployment", "mdep"

#: A role's bounds (the specification, "ModelDeployment and the Pods rendered from it").
MAX_ROLES, MAX_REPLICAS, MAX_SIZE = 10, 1024, 64
#: Bounds of our own: the API server wants one on whatever a CEL rule walks through.
MAX_ARGS, MAX_ARG_LENGTH, MAX_ENV, MAX_ENV_NAME_LENGTH = 256, 8192, 256, 256
#: Of a ModelDeployment's and a role's name together: a Pod's hostname ``<deployment>-<role>-<ordinal>-<member>`` is a
#: DNS label, of 63 characters at most.
MAX_NAMES_LENGTH = 63 - len("-") - len(f"-{MAX_REPLICAS - 1}-{MAX_SIZE - 1}")

DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
#: What a Service's name must be (RFC 1035): no digit first.
SERVICE_NAME = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
#: A label's value, as Kubernetes takes it.
LABEL_VALUE = r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"


@dataclass(frozen=True)
class Rule:
    """A rule in CEL over ``self``.

    ``message`` is CEL too: a string expression that names the value and the bound. ``says``: the rule as a sentence.
    ``path``: of the field it is about, below the object the rule stands at, such as ``.extraArgs``.

    CEL of Kubernetes 1.28 alone. The API server bounds the cost of an expression by what it can tell of its parts: of
    ``string(n)``, ``join`` and what follows a ``filter`` it tells nothing, of an item of ``map(…).filter(…)`` it does.
    """

    rule: str
    message: str
    says: str
    path: str

    def schema(self) -> dict[str, str]:
        """As an item of x-kubernetes-validations. ``message`` there is what is said when the expression fails."""
        return {"rule": self.rule, "message": self.says, "messageExpression": self.message, "fieldPath": self.path}


class Marker:
    """Annotates a field with keywords of a CustomResourceDefinition's schema."""

    def keywords(self) -> dict[str, Any]:
        raise NotImplementedError

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(core), **self.keywords()}


def rule_keywords(rules: tuple[Rule, ...]) -> dict[str, Any]:
    return {"x-kubernetes-validations": [rule.schema() for rule in rules]} if rules else {}


#: Stands for a type of Kubernetes' own until operator_glue.crd puts the type's schema there.
KUBERNETES_TYPE = "x-kubernetes-type"


@dataclass(frozen=True)
class Kubernetes(Marker):
    """The field is of a type of Kubernetes' own, by its name in Kubernetes' OpenAPI document.

    ``bounds``: keywords of our own on its fields: what a CEL rule reads needs them, and what no Pod could have is
    refused early. ``rules``: of our own.
    """

    type: str
    bounds: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()

    def keywords(self) -> dict[str, Any]:
        return {KUBERNETES_TYPE: {"type": self.type, "bounds": self.bounds}, **rule_keywords(self.rules)}


@dataclass(frozen=True)
class MapList(Marker):
    """A list whose items are told apart by these fields."""

    keys: tuple[str, ...] = ("name",)

    def keywords(self) -> dict[str, Any]:
        return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(self.keys)}


@dataclass(frozen=True)
class SetList(Marker):
    """A list without duplicates."""

    def keywords(self) -> dict[str, Any]:
        return {"x-kubernetes-list-type": "set"}


_CORE = "io.k8s.api.core.v1"
Arg = Annotated[str, Field(max_length=MAX_ARG_LENGTH)]


class Ruled(BaseModel):
    """``rules``: what CEL checks at this place."""

    rules: ClassVar[tuple[Rule, ...]] = ()

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler.resolve_ref_schema(handler(core))
        schema.update(rule_keywords(cls.rules))
        return schema


class Part(Ruled):
    """A part of the resource."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, use_attribute_docstrings=True
    )


class EngineName(str, Enum):
    """The inference engine."""

    VLLM = "vLLM"
    SGLANG = "SGLang"


class RouterName(str, Enum):
    """The router in front of the engines."""

    VLLM_ROUTER = "vllm-router"
    SGLANG_GATEWAY = "sglang-gateway"
    LLM_D_ROUTER = "llm-d-router"


class RoleKind(str, Enum):
    """What a role's engines do of a request."""

    SERVER = "Server"
    PREFILL = "Prefill"
    DECODE = "Decode"


class Model(Part):
    """The model that every role serves."""

    name: Annotated[str, Field(min_length=1, max_length=1024, pattern="^[^-]")]
    """What the engine loads: a name on the model hub or a path in the container."""


class EngineSpec(Part):
    """The inference engine of every role."""

    name: EngineName
    """vLLM or SGLang. The drain hook sums this engine's gauges."""
    image: Annotated[str, Field(min_length=1, max_length=1024)]
    """The engine's container image; a role can name another one of the same engine."""


class SecretKeyRef(Part):
    """A key of a Secret in the same namespace."""

    name: Annotated[str, Field(min_length=1, max_length=253)]
    """The Secret's name."""
    key: Annotated[str, Field(min_length=1, max_length=253)]
    """The key in it."""


class Router(Part):
    """The router that spreads requests over the replicas. Without one, Services alone do."""

    name: RouterName
    """vllm-router fronts vLLM, sglang-gateway fronts SGLang, llm-d-router (an endpoint picker and an InferencePool)
    fronts both."""
    replicas: Annotated[int, Field(ge=0, le=64)] = 1
    """Pods of the router's Deployment."""
    image: Annotated[str, Field(min_length=1, max_length=1024)]
    """The router's container image."""
    extra_args: Annotated[list[Arg], Field(max_length=MAX_ARGS)] = []
    """Appended to the router's command line."""
    api_key_secret_ref: SecretKeyRef | None = None
    """The router's API key. sglang-gateway asks its clients for it and guards its own API with it; vllm-router only
    shows it to its engines. llm-d-router takes none."""

    rules = (
        Rule(
            "!has(self.apiKeySecretRef) || self.name != 'llm-d-router'",
            "'llm-d-router takes no API key; the gateway in front of it asks for one'",
            "llm-d-router takes no API key; the gateway in front of it asks for one",
            ".apiKeySecretRef",
        ),
    )


class WithoutRouter(str, Enum):
    """How a replica leaves where no router can say that it is withdrawn."""

    ABORT = "Abort"
    PROVE_FROM_MEMBER = "ProveFromMember"


class Retirement(Part):
    """How replicas that the spec no longer wants are retired."""

    without_router: WithoutRouter = WithoutRouter.ABORT
    """Without spec.router nothing outside of a replica can prove that no client is connected to it. Abort: its
    retirement ends as Aborted after 30 s and the replica stays. ProveFromMember: the proof is taken from the socket
    table of the replica's own Pod."""
    ignore_peers: Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=32), SetList()] = []
    """Networks (CIDR) or addresses whose connections do not count as clients, such as a scraper's. Used by
    ProveFromMember alone."""


class TemplateMetadata(Part):
    """Metadata added to the role's Pods."""

    labels: Annotated[dict[str, Annotated[str, Field(max_length=63, pattern=LABEL_VALUE)]], Field(max_length=64)] = {}
    """Labels; those of drainagent.io, app.kubernetes.io and kueue.x-k8s.io that the operator sets win."""
    annotations: Annotated[dict[str, str], Field(max_length=64)] = {}
    """Annotations; those that the operator sets win."""


class TemplateSpec(Part):
    """Scheduling fields of the role's Pods, with Kubernetes' own names and types."""

    node_selector: Annotated[
        dict[str, Annotated[str, Field(max_length=63, pattern=LABEL_VALUE)]] | None, Field(max_length=64)
    ] = None
    """Labels a node must have."""
    tolerations: Annotated[list[Annotated[Any, Kubernetes(f"{_CORE}.Toleration")]] | None, Field(max_length=64)] = None
    """Taints the Pods tolerate."""
    affinity: Annotated[Any, Kubernetes(f"{_CORE}.Affinity")] = None
    """Rules about the nodes and Pods to be near to or apart from."""
    topology_spread_constraints: Annotated[
        list[Annotated[Any, Kubernetes(f"{_CORE}.TopologySpreadConstraint")]] | None, Field(max_length=16)
    ] = None
    """How the Pods are spread over topology domains."""
    scheduler_name: Annotated[str | None, Field(max_length=253)] = None
    """The scheduler that places the Pods."""
    priority_class_name: Annotated[str | None, Field(max_length=253)] = None
    """The Pods' priority class."""
    runtime_class_name: Annotated[str | None, Field(max_length=253)] = None
    """The container runtime's class."""
    service_account_name: Annotated[str | None, Field(max_length=253)] = None
    """The service account the Pods run as. The engine needs none."""
    image_pull_secrets: Annotated[
        list[Annotated[Any, Kubernetes(f"{_CORE}.LocalObjectReference")]] | None, Field(max_length=16)
    ] = None
    """Secrets for pulling images."""
    security_context: Annotated[Any, Kubernetes(f"{_CORE}.PodSecurityContext")] = None
    """The Pods' security attributes."""
    host_network: bool | None = None
    """Use the node's network. Ports must then differ from every other Pod's on the node."""
    volumes: Annotated[list[Annotated[Any, Kubernetes(f"{_CORE}.Volume")]] | None, Field(max_length=64)] = None
    """Volumes that the role's volumeMounts can name."""


class Template(Part):
    """What is laid over the role's rendered Pod template."""

    metadata: TemplateMetadata = TemplateMetadata()
    """Labels and annotations of the Pods."""
    spec: TemplateSpec = TemplateSpec()
    """Scheduling fields of the Pods."""


_SPARED = {When.ALWAYS: "", When.SEVERAL_PODS: "self.size == 1 || ", When.HALVES: "self.kind == 'Server' || "}


def _flag_rule(flag: OwnedFlag) -> Rule:
    """Refuses a flag in its simple spellings. Nothing but comparisons: their cost has no part of an argument's length.

    The engine's parser takes more spellings; those are operator_glue.admission's.
    """
    alone = " && ".join(f"!('{word}' in self.extraArgs)" for word in flag.spellings)
    valued = " && ".join(f"!a.startsWith('{word}=')" for word in flag.spellings)
    where = "" if flag.when is When.ALWAYS else f" ({flag.when.value})"
    return Rule(
        f"{_SPARED[flag.when]}!has(self.extraArgs) || ({alone} && self.extraArgs.all(a, {valued}))",
        f'"{refusal(flag)}"',
        refusal(flag) + where,
        ".extraArgs",
    )


_ENV_BOUNDS = {"name": {"minLength": 1, "maxLength": MAX_ENV_NAME_LENGTH}}
_PORT_BOUNDS = {"containerPort": {"minimum": 1, "maximum": 65535}}
_ENV_RULE = Rule(
    f"!self.name.startsWith('{OWNED_ENV_PREFIX}')",
    f"self.name + ' is set by the operator, as all is that begins with {OWNED_ENV_PREFIX}'",
    f"no variable's name begins with {OWNED_ENV_PREFIX}; the operator sets those",
    ".name",
)


class Role(Part):
    """A set of like replicas: each serves the model, and is created, drained and deleted as one."""

    name: Annotated[str, Field(min_length=1, max_length=40, pattern=DNS_LABEL)]
    """The role's name, a DNS label; it is part of its Pods' names."""
    kind: RoleKind = RoleKind.SERVER
    """Server: whole requests. Prefill and Decode: one half each, with the KV cache moved between them."""
    replicas: Annotated[int, Field(ge=0, le=MAX_REPLICAS)] = 1
    """How many replicas. Fewer: the highest ordinals go through the retirement protocol."""
    size: Annotated[int, Field(ge=1, le=MAX_SIZE)] = 1
    """Pods per replica. Above 1, member 0 is the leader, has the listener, and the others follow it."""
    image: Annotated[str | None, Field(min_length=1, max_length=1024)] = None
    """The engine's image, in place of spec.engine.image."""
    command: Annotated[list[Arg] | None, Field(min_length=1, max_length=MAX_ARGS)] = None
    """Takes the whole command line over. Such a role gets no drain hook, no scrape annotations, no probes and no engine
    flags, since the operator cannot claim that the container serves the engine's gauges; retirement holds it."""
    extra_args: Annotated[list[Arg], Field(max_length=MAX_ARGS)] = []
    """Appended to the engine's command line, word by word. Flags that the operator sets itself are refused: the model,
    the role's half of a pair, the places of a replica's Pods. Of --host, --port and --uds yours win, and the drain hook
    then finds no engine where the operator says; ports is how to choose the port."""
    env: Annotated[
        list[Annotated[Any, Kubernetes(f"{_CORE}.EnvVar", _ENV_BOUNDS, (_ENV_RULE,))]],
        Field(max_length=MAX_ENV),
        MapList(),
    ] = []
    """Environment of the container main."""
    ports: Annotated[
        list[Annotated[Any, Kubernetes(f"{_CORE}.ContainerPort", _PORT_BOUNDS)]],
        Field(max_length=16),
        MapList(("containerPort", "protocol")),
    ] = []
    """Ports of the container main. The engine listens on the one named http, else on the first, else on its default
    (8000 for vLLM, 30000 for SGLang)."""
    resources: Annotated[Any, Kubernetes(f"{_CORE}.ResourceRequirements")] = None
    """Resources of the container main, the accelerators among them."""
    volume_mounts: Annotated[
        list[Annotated[Any, Kubernetes(f"{_CORE}.VolumeMount")]], Field(max_length=64), MapList(("mountPath",))
    ] = []
    """Where the container main sees the volumes of template.spec.volumes."""
    termination_grace_period_seconds: Annotated[
        int | None,
        Field(
            ge=MIN_GRACE_S,
            le=MAX_GRACE_S,
            description=f"G: how long a deleted replica may drain and stop, {MIN_GRACE_S} to {MAX_GRACE_S} seconds, "
            f"{DEFAULT_GRACE_S} when unset. Requests still running at G - 5 are cut. It is a ceiling, not a wait: an "
            "idle replica leaves after about 6 s.",
        ),
    ] = None
    queue_name: Annotated[str | None, Field(min_length=1, max_length=63, pattern=DNS_LABEL)] = None
    """The Kueue LocalQueue. Each replica is then a Pod group of its own, with a Workload of its own."""
    template: Template = Template()
    """Laid over the rendered Pod template: scheduling fields, labels and annotations."""

    rules = (
        Rule(
            "self.name != 'router'",
            "'router is the name of what the operator names after the router'",
            "a role is not named router, as the router's own objects are",
            ".name",
        ),
        Rule(
            "!self.name.matches('-[0-9]+$')",
            "self.name + ' ends as the name of a replica does, in a dash and a number'",
            "a role's name does not end in a dash and a number, as the names of replicas do",
            ".name",
        ),
        Rule(
            "!has(self.command) || !has(self.extraArgs) || size(self.extraArgs) == 0",
            "'command takes the command line over, so that extraArgs have nothing to be appended to; "
            "write them into command'",
            "extraArgs are not beside command, which takes the command line over",
            ".extraArgs",
        ),
        *map(_flag_rule, OWNED_FLAGS),
    )


class ModelDeploymentSpec(Part):
    """What is wanted."""

    model: Model
    """The model that every role serves."""
    engine: EngineSpec
    """The inference engine of every role."""
    router: Router | None = None
    """The router in front of the replicas."""
    retirement: Retirement = Retirement()
    """How replicas that the spec no longer wants are retired."""
    roles: Annotated[list[Role], Field(min_length=1, max_length=MAX_ROLES), MapList()]
    """The sets of replicas, told apart by their names."""

    rules = (
        Rule(
            "self.roles.all(r, r.kind == 'Server') || self.roles.all(r, r.kind != 'Server')",
            "'a Server does not stand beside another kind, and '"
            "+ self.roles.map(r, r.name + ' is ' + r.kind).filter(t, t.endsWith(' is Server'))[0] + ', '"
            "+ self.roles.map(r, r.name + ' is ' + r.kind).filter(t, !t.endsWith(' is Server'))[0]",
            "a Server does not stand beside another kind",
            ".roles",
        ),
        Rule(
            "!has(self.router) || self.router.name == 'llm-d-router' "
            "|| (self.router.name == 'vllm-router') == (self.engine.name == 'vLLM')",
            "self.router.name + ' does not front ' + self.engine.name + ', which spec.engine.name says: '"
            "+ (self.engine.name == 'vLLM' ? 'vllm-router' : 'sglang-gateway') + ' and llm-d-router do'",
            "vllm-router fronts vLLM, sglang-gateway SGLang, llm-d-router both",
            ".router.name",
        ),
    )


class Metadata(BaseModel):
    """What is read of an object's metadata."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str
    namespace: str | None = None
    uid: str | None = None
    generation: int | None = None
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}


class ModelDeployment(Ruled):
    """A model served by replicas of an inference engine, which leave without cutting a request."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True, use_attribute_docstrings=True
    )
    api_version: Literal["drainagent.io/v1alpha1"]
    kind: Literal["ModelDeployment"]
    metadata: Metadata
    spec: ModelDeploymentSpec
    """What is wanted: a model, an engine, replicas by role, and perhaps a router in front of them."""

    rules = (
        Rule(
            f"self.metadata.name.matches('{SERVICE_NAME}')",
            "'metadata.name ' + self.metadata.name + ' must be lower case letters, digits and dashes, a letter first: '"
            "+ 'Services are named after it'",
            "metadata.name is lower case letters, digits and dashes, a letter first: Services are named after it",
            ".metadata",
        ),
        Rule(
            f"self.spec.roles.all(r, size(self.metadata.name) + size(r.name) <= {MAX_NAMES_LENGTH})",
            "'metadata.name ' + self.metadata.name + ' and roles[].name '"
            f"+ self.spec.roles.map(r, r.name).filter(n, size(self.metadata.name) + size(n) > {MAX_NAMES_LENGTH})[0]"
            f"+ ' together have more than {MAX_NAMES_LENGTH} characters, and hostnames are made of them'",
            f"metadata.name and roles[].name together have at most {MAX_NAMES_LENGTH} characters, "
            "since hostnames are made of them",
            ".spec.roles",
        ),
    )
