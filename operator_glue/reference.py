"""The docs' tables of what is checked of a ModelDeployment and of the retirement protocol, made from the code. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from operator_glue.admission import WEBHOOK_RULES
from operator_glue.crd import schema
from operator_glue.faults import Where
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
