"""The real cluster with images of the stand-in engine and the stock routers; skipped where there is none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "cluster"))
sys.path.insert(0, str(Path(__file__).parents[2] / "engines"))

from hook import images
from kube import Kube

from e2e.router_images import on_the_node
from e2e.stage import Operator, Stage
from operator_glue.crd import custom_resource_definition


@pytest.fixture(scope="module")
def kube(request: pytest.FixtureRequest) -> Iterator[Kube]:
    """A namespace for each file: they run beside each other."""
    name = request.module.__name__.rpartition(".")[2].removeprefix("test_").replace("_", "-")
    try:
        found = Kube.of_cluster(f"e2e-{name}")
    except RuntimeError as error:
        pytest.skip(str(error))
    images.on_the_node()
    on_the_node()
    found.apply(custom_resource_definition(), server_side=True)
    found.run("wait", "--for=condition=Established", "crd/modeldeployments.drainagent.io", "--timeout=30s")
    _let_go(found)
    found.delete_namespace(timeout=180)
    found.create_namespace()
    yield found
    _let_go(found)
    found.delete_namespace(wait=False)


def _let_go(kube: Kube) -> None:
    """What a case left behind: without an operator no finalizer goes."""
    for one in kube.find("mdep"):
        change = '{"metadata":{"finalizers":null}}'
        kube.run("patch", "mdep", one["metadata"]["name"], "--type=merge", "-p", change)


@pytest.fixture(scope="module")
def operator(kube: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    found = Operator(kube, tmp_path_factory.mktemp("operator"))
    found.start()
    yield found
    found.stop()


@pytest.fixture(scope="class")
def stage(request: pytest.FixtureRequest, kube: Kube, operator: Operator) -> Iterator[Stage]:
    """Three replicas of the role server behind the class' router."""
    found = Stage(kube, operator, "llama", request.cls.router)
    found.apply(found.role())
    found.settle()
    yield found
    found.remove()
