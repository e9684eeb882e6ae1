"""A real API server takes every object that is rendered, those of the golden files (a dry run)."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "cluster"))

from golden_files import Shape, rendered, shapes

NAMESPACE = "models"
#: What Pods of the shapes name and an API server looks for. They stay: without controllers no namespace can be deleted.
NAMED: list[dict[str, Any]] = [
    {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
    {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": NAMESPACE}},
    {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "llama", "namespace": NAMESPACE}},
    {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "serving"}, "value": 1},
    {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": "nvidia"},
]


def a_list(items: Any) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(items)})


@pytest.fixture(scope="session")
def kube() -> Any:
    one = importlib.import_module("kube").Kube.of_cluster(NAMESPACE)
    one.run("apply", "--server-side", "-f", "-", stdin=a_list(NAMED))
    return one


@pytest.mark.parametrize("shape", shapes(), ids=str)
def test_the_api_server_takes_a_shape(kube: Any, shape: Shape) -> None:
    objects = rendered(shape).objects
    options = ("--dry-run=server", "--validate=strict", "-o", "name")
    taken = kube.run("create", "-f", "-", *options, stdin=a_list(objects))
    assert len(taken.splitlines()) == len(objects)


def test_grace_30_and_unset_are_stored_alike(kube: Any) -> None:
    """A take-over role's too, where the API server fills in what the renderer leaves out."""
    shape = next(shape for shape in shapes() if shape.name == "take-over")
    pod = next(item for item in rendered(shape).objects if item["kind"] == "Pod")
    assert "terminationGracePeriodSeconds" not in pod["spec"]
    stored = json.loads(kube.run("create", "-f", "-", "--dry-run=server", "-o", "json", stdin=json.dumps(pod)))
    assert stored["spec"]["terminationGracePeriodSeconds"] == 30
