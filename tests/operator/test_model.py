"""The typed resource: its bounds fit the names that are made of it, its rules stand where they say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from drainagent.catalogue import ENGINES
from drainagent.engine_argv import given_flags
from operator_glue import names
from operator_glue.crd import schema
from operator_glue.model import MAX_NAMES_LENGTH, MAX_REPLICAS, MAX_SIZE, ModelDeployment, Role
from operator_glue.owned import OWNED_ENV_PREFIX, OWNED_FLAGS, OwnedFlag


def rules(part: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, str]]]:
    """Each rule with the schema it stands at."""
    yield from ((part, rule) for rule in part.get("x-kubernetes-validations", ()))
    below = [*part.get("properties", {}).values(), *(part[key] for key in ("items",) if key in part)]
    for value in below:
        yield from rules(value)


def test_the_longest_hostname_is_a_dns_label() -> None:
    replica = names.replica_name("d" * (MAX_NAMES_LENGTH - 1), "r", MAX_REPLICAS - 1)
    assert len(names.member_hostname(replica, MAX_SIZE - 1)) == 63


def test_each_rule_is_about_a_field_that_is_there() -> None:
    for part, rule in rules(schema()):
        found = part
        for step in rule["fieldPath"].removeprefix(".").split("."):
            found = found["properties"][step]


def test_each_rule_says_what_it_is_about_in_one_line() -> None:
    found = [rule for _, rule in rules(schema())]
    assert len(found) > 15
    for rule in found:
        assert 10 < len(rule["message"]) < 250
        assert "\n" not in rule["message"] + rule["messageExpression"]


def test_rules_use_cel_of_kubernetes_1_28() -> None:
    for _, rule in rules(schema()):
        for text in (rule["rule"], rule["messageExpression"]):
            code = re.sub(r"'[^']*'|\"[^\"]*\"", "''", text)
            called = set(re.findall(r"(\w+)\(", code)) - {"size", "has", "all", "map", "filter"}
            assert called <= {"startsWith", "endsWith", "matches"}, text


@pytest.mark.parametrize("flag", OWNED_FLAGS, ids=lambda flag: str(flag.flag))
def test_an_owned_flag_is_the_engines_by_the_name_that_the_reader_gives_it(flag: OwnedFlag) -> None:
    for engine in ENGINES:
        given = given_flags(engine, [flag.flag, "1"])
        # An engine that lacks it does not start with it, so that the rule need not know the engine.
        assert list(given) == ([flag.names[engine.name]] if engine.name in flag.names else [])


@pytest.mark.parametrize("flag", OWNED_FLAGS, ids=lambda flag: str(flag.flag))
def test_every_simple_spelling_is_read_as_that_flag(flag: OwnedFlag) -> None:
    for engine in ENGINES:
        if engine.name in flag.names and engine.option == "vllm":
            for spelling in flag.spellings:
                assert list(given_flags(engine, [spelling, "1"])) == [flag.names[engine.name]]


def test_what_the_renderer_sets_in_the_environment_begins_as_what_is_refused() -> None:
    for name in (names.LEADER_ADDRESS_ENV, names.REPLICA_SIZE_ENV, names.MEMBER_INDEX_ENV):
        assert name.startswith(OWNED_ENV_PREFIX)


def test_the_model_has_kubernetes_names() -> None:
    fields = {field.alias for field in Role.model_fields.values()}
    assert {"terminationGracePeriodSeconds", "extraArgs", "volumeMounts", "queueName"} <= fields


def test_a_minimal_resource_has_the_defaults() -> None:
    spec = {"model": {"name": "m"}, "engine": {"name": "vLLM", "image": "i"}, "roles": [{"name": "a"}]}
    found = ModelDeployment.model_validate(
        {"apiVersion": "drainagent.io/v1alpha1", "kind": "ModelDeployment", "metadata": {"name": "d"}, "spec": spec}
    )
    (role,) = found.spec.roles
    assert (role.kind.value, role.replicas, role.size, role.extra_args) == ("Server", 1, 1, [])
    assert found.spec.retirement.without_router.value == "Abort"
