"""The docs' tables of the operator: checks, the protocol, conditions, events, rights. Made from the code. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from operator_glue.admission import WEBHOOK_RULES
from operator_glue.crd import schema
from operator_glue.faults import Where
from operator_glue.install import Rule, Settings, rules
from operator_glue.names import RETRY_ANNOTATION, ROLL_ANNOTATION, SERVING_LABEL, SPEC_HASH_ANNOTATION
from operator_glue.reconcile.conditions import Condition, Why
from operator_glue.reconcile.events import EVENTS
from operator_glue.reconcile.removal import FINALIZER
from operator_glue.retirement.reasons import Reason
from operator_glue.retirement.step import PROTOCOL


def admission_table() -> str:
    """Field, what it must be, and what checks that in a cluster; fields of Kubernetes' own types by their bounds."""
    whole = schema(kubernetes_types=False)
    rows = [("field", "must be", "checked by"), ("---", "---", "---")]
    rows += [(_code(path), text, Where.SCHEMA.value) for path, text in _bounds(whole["properties"]["spec"], "spec")]
    rows += [(_code(path), text, Where.CEL.value) for path, text in _rules(whole, "")]
    rows += [
        (", ".join(f"`spec.{field}`" for field in fields.split(", ")), f"{asks} ({why})", Where.WEBHOOK.value)
        for fields, asks, why in WEBHOOK_RULES
    ]
    return "".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |\n" for row in rows)


def protocol_table() -> str:
    """A row for each state: operator_glue.retirement.step.PROTOCOL."""
    rows = [("state", "means", "waits for", "budget", "then", "at the bound"), ("---",) * 6]
    for row in PROTOCOL:
        budget = "" if row.budget_s is None else f"{row.budget_s:g} s"
        rows.append((row.state.value, row.means, row.waits_for, budget, row.then, row.at_the_bound))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def reason_table() -> str:
    """A row for each reason of the protocol."""
    rows = [("reason", "the removal", "meaning"), ("---",) * 3]
    rows += [(f"`{reason.word}`", reason.effect.value, reason.sentence) for reason in Reason]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def condition_table() -> str:
    """The conditions, then the reasons of Available and Progressing."""
    rows = [("condition", "when True"), ("---",) * 2]
    rows += [(f"`{one.word}`", one.sentence) for one in Condition]
    reasons = [("reason", "meaning"), ("---",) * 2, *((f"`{one.word}`", one.sentence) for one in Why)]
    return _table(rows) + "\n" + _table(reasons)


def event_table() -> str:
    return _table([("event", "tells"), ("---",) * 2, *((f"`{reason}`", text) for reason, text in EVENTS.items())])


def key_table() -> str:
    """What a user may write on a ModelDeployment or find on its objects."""
    return _table(
        [
            ("key", "where", "meaning"),
            ("---",) * 3,
            (f"`{ROLL_ANNOTATION}`", "annotation of a ModelDeployment", "another value replaces every replica"),
            (
                f"`{RETRY_ANNOTATION}`",
                "annotation of a ModelDeployment",
                "`<role>:<ordinal>:<token>` tries a removal that was aborted again, once for each token",
            ),
            (f"`{FINALIZER}`", "finalizer of a ModelDeployment", "goes when its Pods have drained and nothing is left"),
            (f"`{SERVING_LABEL}`", "label of a Pod", "what Services and routers select; taken away to withdraw it"),
            (
                f"`{SPEC_HASH_ANNOTATION}`",
                "annotation of a Pod",
                "what the spec decides of it; another replaces it",
            ),
        ]
    )


def rights_table() -> str:
    """Of an installation with everything."""
    head = [("where", "group", "resources", "verbs", "names", "why"), ("---",) * 6]
    return _table([*head, *map(_right, rules(Settings()))])


def _right(rule: Rule) -> tuple[str, ...]:
    why = f"held, not used: {rule.why}" if rule.held else rule.why
    resources, verbs, names = ", ".join(rule.resources), ", ".join(rule.verbs), ", ".join(rule.names)
    return rule.scope.value, rule.group, resources, verbs, names, why


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _code(path: str) -> str:
    return f"`{path}`"


def _parts(part: Mapping[str, Any], path: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    for name, value in part.get("properties", {}).items():
        yield value, f"{path}.{name}".removeprefix(".")
    if "items" in part:
        yield part["items"], f"{path}[]"
    if isinstance(part.get("additionalProperties"), dict):
        yield part["additionalProperties"], f"{path}.*"


def _bounds(part: Mapping[str, Any], path: str, *, required: bool = False) -> Iterator[tuple[str, str]]:
    texts = [*(["required"] if required else []), *_keywords(part)]
    if texts:
        yield path, ", ".join(texts)
    for value, below in _parts(part, path):
        yield from _bounds(value, below, required=below.rpartition(".")[2] in part.get("required", ()))


def _keywords(part: Mapping[str, Any]) -> Iterator[str]:
    if "enum" in part:
        yield "one of " + ", ".join(f"`{value}`" for value in part["enum"])
    for kind, low, high, unit in (
        ("", "minimum", "maximum", ""),
        ("", "minLength", "maxLength", " characters"),
        ("", "minItems", "maxItems", " items"),
        ("", "minProperties", "maxProperties", " entries"),
    ):
        if low in part and high in part:
            yield f"{kind}{part[low]} to {part[high]}{unit}"
        elif high in part:
            yield f"{kind}at most {part[high]}{unit}"
    if "pattern" in part:
        yield f"like `{part['pattern']}`"
    keys = part.get("x-kubernetes-list-map-keys")
    if keys:
        yield f"no two with the same {' and '.join(keys)}"
    elif part.get("x-kubernetes-list-type") == "set":
        yield "no two the same"
    if "default" in part and part["default"] != {}:
        yield f"`{_plain(part['default'])}` when unset"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _rules(part: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    for rule in part.get("x-kubernetes-validations", ()):
        yield f"{path}{rule['fieldPath']}".removeprefix("."), rule["message"]
    for value, below in _parts(part, path):
        yield from _rules(value, below)
