"""The renderer's golden files: for each shape an input and, beside it, what is rendered of it.

``SHAPE.yaml`` is a ModelDeployment; a comment line ``# facts: kubernetes=1.28 delivery=in-image`` says how its cluster
differs from the default. ``SHAPE.rendered.yaml`` has the warnings as comments, then the objects of the roles. Those of
the routers are in golden-routers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from drainagent.podspec import AgentImage, Delivery
from operator_glue.facts import ClusterFacts
from operator_glue.model import ModelDeployment
from operator_glue.render import Rendering, render, replica_objects, role_plan
from operator_glue.render.routers import router_objects

FOLDER = Path(__file__).with_name("golden")
#: Not the default, which changes with each release.
AGENT_IMAGE = AgentImage("registry.corp/drainagent/agent:1")


@dataclass(frozen=True)
class Shape:
    """One shape of ModelDeployment."""

    name: str
    deployment: ModelDeployment
    facts: ClusterFacts

    def __str__(self) -> str:
        return self.name

    @property
    def rendered(self) -> Path:
        return FOLDER / f"{self.name}.rendered.yaml"


def read_facts(text: str) -> ClusterFacts:
    """The facts that a shape's comment says."""
    said = dict(
        word.split("=", 1) for line in re.findall(r"^# facts: (.*)$", text, re.MULTILINE) for word in line.split()
    )
    facts: dict[str, Any] = {"agent_image": AGENT_IMAGE}
    for name, value in said.items():
        if name == "kubernetes":
            major, minor = value.split(".")
            facts[name] = (int(major), int(minor))
        elif name == "pod_ip_family":
            facts[name] = int(value)
        elif name == "delivery":
            facts[name] = Delivery(value)
        else:
            facts[name] = {"true": True, "false": False}[value]
    return ClusterFacts(**facts)


@cache
def shapes() -> tuple[Shape, ...]:
    """All of them, by name."""
    found = []
    for path in sorted(FOLDER.glob("*.yaml")):
        if not path.name.endswith(".rendered.yaml"):
            text = path.read_text()
            found.append(Shape(path.stem, ModelDeployment.model_validate(yaml.safe_load(text)), read_facts(text)))
    return tuple(found)


class _Dumper(yaml.SafeDumper):
    """Without anchors."""

    def ignore_aliases(self, _: Any) -> bool:
        return True


def as_text(name: str, rendering: Rendering) -> str:
    """A golden file's text."""
    lines = [f"# Rendered from {name}.yaml; DRAINAGENT_WRITE_GOLDEN=1 writes it anew (test_render_golden.py)."]
    lines += [f"# warning: {warning.path}: {warning.message}" for warning in rendering.warnings]
    objects = yaml.dump_all(rendering.objects, Dumper=_Dumper, sort_keys=False, width=120, explicit_start=True)
    return "\n".join(lines) + "\n" + objects


def rendered(shape: Shape) -> Rendering:
    """Without what the router gives to it, which comes last."""
    whole = render(shape.deployment, shape.facts)
    router, warnings = router_objects(shape.deployment, shape.facts)
    objects = whole.objects[: len(whole.objects) - len(router)]
    assert whole.objects[len(objects) :] == router
    return Rendering(objects, whole.warnings[: len(whole.warnings) - len(warnings)])


def engine_pods(shape: Shape) -> list[dict[str, Any]]:
    """The engines' Pods of a shape."""
    found = []
    for role in shape.deployment.spec.roles:
        plan = role_plan(shape.deployment, role, shape.facts)
        objects = [item for ordinal in range(role.replicas) for item in replica_objects(plan, ordinal)]
        found += [item for item in objects if item["kind"] == "Pod"]
    return found
