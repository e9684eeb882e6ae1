"""Generated ModelDeployments, right ones and ones with mistakes. What both the schema and its rules can say."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from operator_glue.crd import schema
from operator_glue.owned import OWNED_FLAGS

Document = dict[str, Any]

_NAMES = st.from_regex(r"[a-z]([-a-z]{0,8}[a-z])?", fullmatch=True).filter(lambda name: name != "router")
_WORDS = st.sampled_from(["--foo", "--dtype=half", "bar", "-x", "", "--served-model-name", "a=b", "é"])


def _optional(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Document]:
    return st.fixed_dictionaries({}, optional=fields)


def _merged(
    required: st.SearchStrategy[Document], optional: st.SearchStrategy[Document]
) -> st.SearchStrategy[Document]:
    return st.builds(lambda first, second: {**first, **second}, required, optional)


def _role(kinds: st.SearchStrategy[str]) -> st.SearchStrategy[Document]:
    own = _optional(
        replicas=st.integers(0, 1024),
        size=st.sampled_from([1, 1, 1, 2, 64]),
        image=st.just("corp/engine:1"),
        terminationGracePeriodSeconds=st.integers(15, 3600),
        queueName=_NAMES,
        env=st.lists(st.sampled_from(["A", "B", "VLLM_X"]), unique=True).map(
            lambda names: [{"name": name, "value": "x"} for name in names]
        ),
        ports=st.just([{"name": "http", "containerPort": 8000}]),
        resources=st.just({"limits": {"nvidia.com/gpu": 1, "memory": "10Gi"}}),
        template=st.just({"metadata": {"labels": {"team": "a"}}, "spec": {"nodeSelector": {"x/y": "z"}}}),
    )
    line: st.SearchStrategy[Document] = st.one_of(
        st.just({}),
        st.lists(_WORDS, max_size=4).map(lambda words: {"extraArgs": words}),
        st.just({"command": ["sleep", "1"]}),
    )
    named = st.builds(lambda name, kind: {"name": name, "kind": kind}, _NAMES, kinds)
    return st.builds(lambda first, second, third: {**first, **second, **third}, named, own, line)


@st.composite
def valid_documents(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Document:
    """A ModelDeployment without a mistake."""
    engine = draw(st.sampled_from(["vLLM", "SGLang"]))
    kinds = draw(st.sampled_from([st.just("Server"), st.sampled_from(["Prefill", "Decode"])]))
    roles = draw(st.lists(_role(kinds), min_size=1, max_size=3, unique_by=lambda role: str(role["name"])))
    spec: Document = {
        "model": {"name": draw(st.sampled_from(["org/model", "/models/m", "m"]))},
        "engine": {"name": engine, "image": "corp/engine:1"},
        "roles": roles,
    }
    router = draw(st.sampled_from([None, "llm-d-router", "vllm-router" if engine == "vLLM" else "sglang-gateway"]))
    if router is not None:
        spec["router"] = {"name": router, "image": "corp/router:1"}
    spec |= draw(_optional(retirement=_optional(withoutRouter=st.sampled_from(["Abort", "ProveFromMember"]))))
    return {
        "apiVersion": "drainagent.io/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {"name": draw(_NAMES)},
        "spec": spec,
    }


_ODD = st.sampled_from(
    [
        None,
        True,
        0,
        -1,
        14,
        15,
        3600,
        3601,
        1.5,
        2.0,
        10**6,
        "",
        "x",
        "-x",
        "X_y",
        "a" * 64,
        [],
        {},
        [None],
        ["x"],
        {"a": 1},
    ]
)


@st.composite
def broken_documents(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Document:
    """A ModelDeployment with some mistakes, most often."""
    document: Document = copy.deepcopy(draw(valid_documents()))
    for _ in range(draw(st.integers(1, 4))):
        draw(st.sampled_from(_MISTAKES))(draw, document)
    return document


def _roles(document: Document) -> list[Any]:
    roles = document["spec"].get("roles") if isinstance(document.get("spec"), dict) else None
    return [role for role in roles if isinstance(role, dict)] if isinstance(roles, list) else []


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Each (container, key) below a value."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in ((value, key), *_places(value[key]))]


def _odd_value(draw: Any, document: Document) -> None:
    """Another value somewhere below spec."""
    places = _places(document["spec"])
    if places:
        container, key = draw(st.sampled_from(places))
        container[key] = draw(_ODD)


def _left_out(draw: Any, document: Document) -> None:
    places = [place for place in _places(document["spec"]) if isinstance(place[0], dict)]
    if places:
        container, key = draw(st.sampled_from(places))
        container.pop(key, None)


def _odd_field(draw: Any, document: Document) -> None:
    """A field of the role's schema, with a value of any kind."""
    fields = sorted(schema()["properties"]["spec"]["properties"]["roles"]["items"]["properties"])
    for role in _roles(document)[:1]:
        role[draw(st.sampled_from(fields))] = draw(_ODD)


def _unknown(draw: Any, document: Document) -> None:
    maps = [document["spec"], *(place[0][place[1]] for place in _places(document["spec"]))]
    draw(st.sampled_from([item for item in maps if isinstance(item, dict)] or [document]))["bogus"] = 1


def _owned_flag(draw: Any, document: Document) -> None:
    flag = draw(st.sampled_from(OWNED_FLAGS))
    spelling = draw(st.sampled_from(flag.spellings))
    for role in _roles(document)[:1]:
        if isinstance(role.get("extraArgs", []), list):
            role["extraArgs"] = [*role.get("extraArgs", []), draw(st.sampled_from([spelling, f"{spelling}=x"]))]


def _owned_env(_: Any, document: Document) -> None:
    for role in _roles(document)[:1]:
        role["env"] = [{"name": "DRAINAGENT_LEADER_ADDRESS", "value": "x"}]


def _name(draw: Any, document: Document) -> None:
    for role in _roles(document)[-1:]:
        role["name"] = draw(st.sampled_from(["router", "a-0", "a-12", "0", "A", "a" * 40, "a" * 41, "-a", "a\n"]))


def _deployment_name(draw: Any, document: Document) -> None:
    document["metadata"] = {"name": draw(st.sampled_from(["0a", "a.b", "a" * 50, "a" * 53, "a" * 54, "a" * 63]))}


def _kind(draw: Any, document: Document) -> None:
    for role in _roles(document)[:1]:
        role["kind"] = draw(st.sampled_from(["Server", "Prefill", "Decode", "decode"]))


def _router(draw: Any, document: Document) -> None:
    if isinstance(document["spec"], dict):
        name = draw(st.sampled_from(["vllm-router", "sglang-gateway", "llm-d-router", "none"]))
        document["spec"]["router"] = {"name": name, "image": "r", "apiKeySecretRef": {"name": "a", "key": "b"}}


def _twice(_: Any, document: Document) -> None:
    for role in _roles(document)[:1]:
        document["spec"]["roles"] += [dict(role)]
        role["env"] = [{"name": "A"}, {"name": "A"}, {"name": "A"}]
        role["ports"] = [{"containerPort": 1}, {"containerPort": 1, "protocol": "TCP"}]


def _beside_command(_: Any, document: Document) -> None:
    for role in _roles(document)[:1]:
        role |= {"command": ["x"], "extraArgs": ["y"]}


def _many(_: Any, document: Document) -> None:
    for role in _roles(document)[:1]:
        document["spec"]["roles"] = [{**role, "name": f"r{letter}"} for letter in "abcdefghijk"]


_MISTAKES = [
    _odd_value,
    _odd_value,
    _odd_field,
    _left_out,
    _unknown,
    _owned_flag,
    _owned_env,
    _name,
    _deployment_name,
    _kind,
    _router,
    _twice,
    _beside_command,
    _many,
]
