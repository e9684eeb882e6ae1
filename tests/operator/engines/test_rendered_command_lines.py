"""Each golden command line, put to the real engine's own parser. With the engines installed (tests/engines/setup.sh):

.venv/bin/python -m pytest tests/operator/engines
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "engines"))

from engine_parsers import ask, make_mixture
from golden_files import engine_pods, shapes

from drainagent.engine_argv import EngineCommand, Kind, expand_variables, read_command
from drainagent.engine_container import literal_env
from drainagent.podspec import pre_stop_of, read_hook
from operator_glue import names
from operator_glue.model import EngineName


@dataclass(frozen=True)
class Rendered:
    """One Pod's engine, as the kubelet starts it: variables replaced, MODEL for the model."""

    shape: str
    engine: str
    pod: Any
    words: tuple[str, ...]

    def __str__(self) -> str:
        index = self.pod["metadata"]["labels"].get(names.MEMBER_INDEX_LABEL, "0")
        return f"{self.shape}:{self.pod['metadata']['generateName']}{index}"


def rendered_lines() -> list[Rendered]:
    found = []
    for shape in shapes():
        spec = shape.deployment.spec
        for pod in engine_pods(shape):
            main = pod["spec"]["containers"][0]
            if read_hook(pre_stop_of(main)) is None:
                continue
            env = literal_env(main)
            words = [expand_variables(word, env) for word in (*main["command"], *main["args"])]
            words = ["MODEL" if word == spec.model.name else word for word in words]
            engine = "vllm" if spec.engine.name is EngineName.VLLM else "sglang"
            found.append(Rendered(shape.name, engine, pod, tuple(words)))
    return found


RENDERED = rendered_lines()


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_mixture(tmp_path_factory.mktemp("mixture"))


@cache
def answers(engine: str, model: Path) -> dict[str, dict[str, Any]]:
    lines = [line for line in RENDERED if line.engine == engine]
    found = ask(engine, model, [(line.words, {}) for line in lines])
    return {str(line): answer for line, answer in zip(lines, found, strict=True)}


@pytest.mark.parametrize("line", RENDERED, ids=str)
def test_the_engine_takes_it_and_means_what_we_do(line: Rendered, model: Path) -> None:
    theirs = answers(line.engine, model)[str(line)]
    assert "refused" not in theirs, theirs
    ours = read_command(line.words)
    assert isinstance(ours, EngineCommand)
    read = {**vars(ours), "listens": ours.no_listener is None, "ports": list(ours.ports)}
    compared = {name: value for name, value in theirs.items() if name in read and value is not None}
    assert {name: read[name] for name in compared} == compared
    assert {"host", "port", "tls", "metrics", "listens"} <= set(compared)
    assert kind_of(theirs) is ours.kind
    assert theirs.get("unmade") is None, theirs  # vLLM's whole configuration can be made, a follower's too


@pytest.mark.parametrize("line", [line for line in RENDERED if line.shape != "moved-listener"], ids=str)
def test_the_pod_names_the_listener_that_the_engine_opens(line: Rendered, model: Path) -> None:
    theirs = answers(line.engine, model)[str(line)]
    annotations = line.pod["metadata"]["annotations"]
    if not theirs["listens"]:
        assert names.PORT_ANNOTATION not in annotations
        return
    assert annotations[names.PORT_ANNOTATION] == str(theirs["port"])
    assert annotations[names.SCHEME_ANNOTATION] == ("https" if theirs["tls"] else "http")
    assert theirs["metrics"]
    assert theirs["host"] in ("0.0.0.0", "::")
    hook = read_hook(pre_stop_of(line.pod["spec"]["containers"][0]))
    assert hook is not None
    assert [int(url.rpartition(":")[2].partition("/")[0]) for url in hook.urls] == theirs.get("ports", [theirs["port"]])


def kind_of(theirs: dict[str, Any]) -> Kind:
    """What the renderer calls halves, by what the engine has read."""
    if "mode" in theirs:
        return Kind.SERVER if theirs["mode"] == "null" else Kind(theirs["mode"])
    role = theirs["transfer"] and theirs["transfer"][0]
    return {None: Kind.SERVER, "kv_producer": Kind.PREFILL, "kv_consumer": Kind.DECODE}[role]
