"""What is wrong with a resource, in the API server's own words. Pure.

Sources: k8s.io/apimachinery's pkg/util/validation/field/errors.go (the sentences), of Kubernetes 1.34.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import Any

#: A string is a map's key, an integer a list's index.
Path = tuple[str | int, ...]


class Where(Enum):
    """What checks it in a cluster."""

    SCHEMA = "CRD schema"
    CEL = "CEL rule"
    WEBHOOK = "webhook"


@dataclass(frozen=True)
class Fault:
    """``path``: of the field, such as ``spec.roles[0].name``. ``sentence``: names field, value and bound."""

    path: str
    sentence: str
    where: Where = Where.SCHEMA

    def __str__(self) -> str:
        return self.sentence


def dotted(path: Path) -> str:
    """A path as the API server writes it."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def at(path: Path, body: str, where: Where = Where.SCHEMA) -> Fault:
    """A fault as field.Error prints it."""
    return Fault(dotted(path), f"{dotted(path)}: {body}", where)


def invalid(value: Any, detail: str) -> str:
    return f"Invalid value: {shown(value)}: {detail}"


def required(detail: str = "") -> str:
    return "Required value" + (f": {detail}" if detail else "")


def shown(value: Any) -> str:
    """A value as it stands in a sentence: JSON, keys sorted."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
