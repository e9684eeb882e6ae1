"""Our reading of command lines against both real engines' own parsers. Run by hand, with the engines installed:

.venv/bin/python -m pytest tests/engines/test_argv_agreement.py
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from engine_command_lines import LINES, Line
from engine_parsers import ask, make_mixture

from drainagent.engine_argv import EngineCommand, Kind, read_command


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_mixture(tmp_path_factory.mktemp("mixture"))


@cache
def answers(engine: str, model: Path) -> dict[str, dict[str, Any]]:
    """What the engine decides of each of its lines. It is started once for all of them."""
    lines = [line for line in LINES if line.engine == engine]
    found = ask(engine, model, [(line.words, line.env) for line in lines])
    return dict(zip(map(str, lines), found, strict=True))


def kind_by(answer: dict[str, Any]) -> Kind:
    """The kind that the specification gives to what the engine itself has read."""
    if "mode" in answer:
        return Kind.SERVER if answer["mode"] == "null" else Kind(answer["mode"])
    role, connector, children = answer["transfer"] or (None, None, None)
    children = children or []
    if role in ("kv_producer", "kv_consumer"):
        return Kind.PREFILL if role == "kv_producer" else Kind.DECODE
    names = [connector] if connector != "MultiConnector" else [(child or {}).get("kv_connector") for child in children]
    if role == "kv_both" and any(str(name).startswith(("Nixl", "MooncakeConn", "P2pNccl")) for name in names):
        return Kind.HALF
    return Kind.HALF if any(answer["balanced"]) else Kind.SERVER


@pytest.mark.parametrize("line", LINES, ids=str)
def test_ours_agrees_with_the_engine(line: Line, model: Path) -> None:
    theirs = answers(line.engine, model)[str(line)]
    ours = read_command(line.words, line.env)
    assert isinstance(ours, EngineCommand)
    if line.refused or "refused" in theirs:
        assert line.refused, theirs
        assert "refused" in theirs, theirs
        return
    read = {**vars(ours), "listens": ours.no_listener is None, "ports": list(ours.ports)}
    compared = {name: value for name, value in theirs.items() if name in read and value is not None}
    assert {name: read[name] for name in compared} == compared
    if ours.kind is not Kind.UNREADABLE:  # a connector that nobody has told us of
        assert ours.kind is kind_by(theirs)


def test_vllm_makes_nearly_all_configurations(model: Path) -> None:
    """So that the number of engines was compared: None is where this machine cannot make one."""
    started = [answer for answer in answers("vllm", model).values() if "refused" not in answer]
    assert sum(answer["engines"] is None for answer in started) < len(started) / 20
