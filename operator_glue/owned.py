"""Flags and environment variables that the operator sets itself, so that a role may not. Pure.

One table for admission's CEL rules, for the webhook and for the renderer. ``--port``, ``--host`` and ``--uds`` are not
in it: a role may move its listener, and is warned.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from drainagent.catalogue import SGLANG, VLLM, Engine

#: Environment variables whose names begin so are the operator's.
OWNED_ENV_PREFIX = "DRAINAGENT_"
#: How a user owns what the operator does.
WAY_OUT = "only a role that sets command owns its command line"


class When(Enum):
    """On which roles a flag is the operator's."""

    ALWAYS = "every role"
    SEVERAL_PODS = "size above 1"
    HALVES = "Prefill and Decode"

    def holds(self, *, size: int, is_half: bool) -> bool:
        """Whether it is the operator's on a role of this size. ``is_half``: its kind is Prefill or Decode."""
        return self is When.ALWAYS or (size > 1 if self is When.SEVERAL_PODS else is_half)


@dataclass(frozen=True)
class OwnedFlag:
    """A flag by one whole spelling. ``source``: where its value comes from instead, a phrase.

    ``names``: the engines that have it, each with the name that drainagent.engine_flags gives it. An engine without it
    would not start with it, so that the rules need not know the engine.
    """

    flag: str
    names: dict[str, str]
    when: When
    source: str

    @property
    def spellings(self) -> tuple[str, ...]:
        """The simple ones. vLLM takes underscores too."""
        underscored = "--" + self.flag.removeprefix("--").replace("-", "_")
        return tuple(dict.fromkeys((self.flag, underscored) if VLLM.name in self.names else (self.flag,)))


def _owned(flag: str, engines: tuple[Engine, ...], when: When, source: str, **names: str) -> OwnedFlag:
    return OwnedFlag(flag, {engine.name: names.get(engine.option, flag) for engine in engines}, when, source)


_BOTH = (VLLM, SGLANG)
_MODEL = "from spec.model.name"
_PLACE = "from the role's size and the Pod's place in its replica"
_KIND = "from the role's kind"

OWNED_FLAGS = (
    _owned("--model", _BOTH, When.ALWAYS, _MODEL, sglang="--model-path"),
    _owned("--model-path", (SGLANG,), When.ALWAYS, _MODEL),
    _owned("--disaggregation-mode", (SGLANG,), When.ALWAYS, _KIND),
    _owned("--enable-metrics", (SGLANG,), When.ALWAYS, "for the drain hook, which reads the gauges"),
    _owned("--kv-transfer-config", (VLLM,), When.HALVES, _KIND),
    _owned("--nnodes", _BOTH, When.SEVERAL_PODS, _PLACE),
    _owned("--node-rank", _BOTH, When.SEVERAL_PODS, _PLACE),
    _owned("--master-addr", (VLLM,), When.SEVERAL_PODS, _PLACE),
    _owned("--master-port", (VLLM,), When.SEVERAL_PODS, _PLACE),
    _owned("--headless", (VLLM,), When.SEVERAL_PODS, _PLACE),
    _owned("--dist-init-addr", (SGLANG,), When.SEVERAL_PODS, _PLACE),
    _owned("--nccl-init-addr", (SGLANG,), When.SEVERAL_PODS, _PLACE, sglang="--dist-init-addr"),
)


def refusal(flag: OwnedFlag) -> str:
    """What is said of it, a sentence."""
    return f"{flag.flag} is set by the operator {flag.source}; {WAY_OUT}"
