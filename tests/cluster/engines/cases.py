"""What is tried with which engine and router, and what must come of it. Data alone: run.py carries it out.

Times in requests are seconds from the delete. Sizes end soon and graces are long, so that what is sent ends within
G - 5 on a machine that is several times slower too: a grace is no wait.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Literal

from load import ClientPlan, Request
from scenarios import closing, holding

Engine = Literal["vllm", "sglang"]
Router = Literal["vllm-router", "sglang-router"]
#: What stands in the Pod: the hook as `inject` writes it, the same with --gauges-only, or the manifest as it was.
Hook = Literal["drainagent", "gauges-only", "none"]
Delivery = Literal["init-container", "image-volume"]

#: A late request is sent at 4.8 s at the latest: the settle promises the first 5 s.
MIXED: tuple[ClientPlan, ...] = (
    *(closing(Request(at_s, 20 * size, 30 * size)) for at_s, size in ((-6, 3), (-4, 1), (-2, 4), (-1, 2))),
    closing(Request(-0.5, 20, 150)),
    closing(Request(0.5, 300, 60)),
    holding(Request(-3, 20, 40), Request(1.5, 20, 60)),
    closing(Request(3, 20, 100)),
    closing(Request(3.5, 3000, 8)),
    closing(Request(4, 20, 60, stream=False)),
    closing(Request(4.5, 200, 60)),
    closing(Request(4.8, 20, 100)),
)


class TextRequest(Request):
    """Its prompt as text: sglang-router takes no ids. A digit is a token of the models here."""

    def body(self) -> bytes:
        fields = json.loads(super().body())
        return json.dumps({**fields, "prompt": "".join(random.choices("0123456789", k=self.prompt))}).encode()


def long_prompts(engine: Engine, *, count: int, at_s: float) -> tuple[ClientPlan, ...]:
    """Prompts that no gauge shows for long: SGLang's for their whole prefill, vLLM's first logprobs for seconds."""
    logprobs = 5 if engine == "vllm" else None
    sizes = [3500 + 130 * number for number in range(count)]
    return tuple(closing(TextRequest(at_s, size, 5, stream=False, logprobs=logprobs)) for size in sizes)


#: One after the other through a router, which has to find the replica that stays for those after the delete.
STEADY: tuple[ClientPlan, ...] = (
    *(closing(TextRequest(-8 + 1.25 * number, 20 + 40 * (number % 3), 30 + 30 * (number % 3))) for number in range(17)),
    *(closing(TextRequest(-1 + 0.1 * number, 20, 400)) for number in range(4)),
)
#: A read that is busy by what is in flight alone, all gauges zero.
IN_FLIGHT_ALONE = ("RequestsInFlight", "ConnectionsOpen", "BytesInFlight")


@dataclass(frozen=True)
class Case:
    """One situation, each trial with Pods of its own.

    ``trials``: how often, in the short and in the full form. ``router``: in front of two replicas, the first of which
    is deleted. ``view_held_s``: how long the router's watch is held up from just before the delete, a router that has
    not yet heard. ``reaches``: how many requests the deleted replica must have answered, else the trial shows nothing.
    ``cut``: how many requests this must cost, where there is no hook. ``shows``: one of these must be the reason of a
    busy read.
    """

    name: str
    what: str
    engine: Engine
    clients: tuple[ClientPlan, ...]
    trials: tuple[int, int]
    router: Router | None = None
    hook: Hook = "drainagent"
    delivery: Delivery = "init-container"
    grace_s: int = 120
    view_held_s: float = 0
    reaches: int = 1
    cut: int = 0
    shows: tuple[str, ...] = ()


def direct(engine: Engine) -> tuple[Case, ...]:
    """To the Pod's address."""
    mixed = "streams before and after the delete, late ones, and a long prompt"
    quiet = "a quiet Pod that long prompts reach 2.5 s after the delete"
    late = long_prompts(engine, count=3, at_s=2.5)
    # SGLang drains what runs by itself after SIGTERM: what no hook costs there is recorded, not expected.
    cut = 1 if engine == "vllm" else 0
    return (
        Case("mixed", mixed, engine, MIXED, (1, 2)),
        Case("mixed-volume", mixed + "; image volume", engine, MIXED, (0, 1), delivery="image-volume"),
        Case("mixed-none", mixed, engine, MIXED, (cut, 2), hook="none", grace_s=40, cut=cut),
        Case("quiet", quiet, engine, late, (0, 2), shows=IN_FLIGHT_ALONE, grace_s=180),
        # vLLM answers none of them: what is cut in its prefill has no status.
        Case("quiet-gauges", quiet, engine, late, (0, 1), hook="gauges-only", grace_s=60, reaches=0),
    )


def routed(engine: Engine, router: Router) -> tuple[Case, ...]:
    """Through a stock router with Kubernetes discovery, one of two replicas deleted."""
    steady = "steady streams while one of two replicas is deleted"
    quiet = "two quiet replicas, a router that hears of the delete 4 s late, long prompts 2.5 s after the delete"
    late = long_prompts(engine, count=4, at_s=2.5)
    short = 1 if engine == "vllm" else 0
    return (
        Case("steady", steady, engine, STEADY, (short, 2), router, reaches=4),
        Case("steady-none", steady, engine, STEADY, (0, 1), router, hook="none", grace_s=40, reaches=4),
        Case("late", quiet, engine, late, (0, 2), router, view_held_s=4.0, grace_s=180, shows=IN_FLIGHT_ALONE),
    )


SUITE: tuple[Case, ...] = (
    *direct("vllm"),
    *direct("sglang"),
    *routed("vllm", "vllm-router"),
    *routed("sglang", "sglang-router"),
)
