"""Asks both real engines' own parsers about command lines. For the agreement tests of the agent and the operator."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

ENGINES = Path(os.environ.get("DRAINAGENT_ENGINES") or Path.home() / ".cache/drainagent/engines")
SCRIPT = Path(__file__).with_name("parse_with_engine.py")

#: A model of experts, which vLLM's external balance asks for. Its weights are never loaded.
MIXTURE = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}


def make_mixture(folder: Path) -> Path:
    """The model, in ``folder``."""
    tiny = ENGINES / "tiny"
    if not tiny.exists():
        pytest.skip(f"no model in {ENGINES}")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (folder / name).write_bytes((tiny / name).read_bytes())
    config = json.loads((tiny / "config.json").read_text())
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    (folder / "config.json").write_text(json.dumps({**config, **MIXTURE, **heads}))
    return folder


def ask(engine: str, model: Path, lines: Sequence[tuple[Sequence[str], Mapping[str, str]]]) -> list[dict[str, Any]]:
    """What the engine decides of each line, its words and its environment. It is started once for all of them.

    The word MODEL stands for the model. What the engine says lies beside the model, in ENGINE.log.
    """
    python = ENGINES / f"venv-{engine}" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no {engine} in {ENGINES}")
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "SGLANG_USE_CPU_ENGINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "CUDA_VISIBLE_DEVICES": "",
    }
    asked = json.dumps([{"words": list(words), "env": dict(env)} for words, env in lines])
    with (model / f"{engine}.log").open("a") as log:
        answer = subprocess.run(
            [str(python), str(SCRIPT), engine, str(model)],
            input=asked,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            text=True,
            check=True,
        ).stdout
    found: list[dict[str, Any]] = json.loads(answer)
    return found
