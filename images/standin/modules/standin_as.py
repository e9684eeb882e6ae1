"""The stand-in under an engine's names, so that a Deployment written for the engine starts it unchanged."""

from __future__ import annotations

from collections.abc import Sequence

from drainagent.workstation.standin import main


def vllm(arguments: Sequence[str]) -> int:
    """``vllm serve MODEL ...`` and ``python3 -m vllm.entrypoints.openai.api_server ...``."""
    words = list(arguments)
    if words[:1] == ["serve"]:
        del words[0]
        if words and not words[0].startswith("-"):
            words.insert(0, "--model")
    return main(["--engine", "vllm", *words])


def sglang(arguments: Sequence[str]) -> int:
    """``sglang serve ...`` and ``python3 -m sglang.launch_server ...``."""
    words = list(arguments)
    return main(["--engine", "sglang", *(words[1:] if words[:1] == ["serve"] else words)])
