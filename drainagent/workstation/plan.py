"""``drainagent plan``: what a grace allows and cuts, in words, as a drawing and as JSON. Pure but for the command.

Every time is in seconds from the delete and follows from drainagent/timeline.py; what engines take to exit was measured
(evidence.md) or is the user's document's, and each constant here says which.
"""

from __future__ import annotations

import json
import math
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Literal

import click

from drainagent.catalogue import SGLANG, VLLM, Engine, engine_by_name
from drainagent.timeline import (
    BACK_BEFORE_KILL_S,
    DEFAULT_GRACE_S,
    IDLE_READS,
    LAST_READ_BEFORE_KILL_S,
    MAX_GRACE_S,
    MIN_GRACE_S,
    READ_PERIOD_S,
    SPLIT_EXIT_0_5_23_S,
    SPLIT_EXIT_S,
    SPLIT_GRACE_S,
    timeline,
)

Kind = Literal["server", "prefill", "decode"]
KINDS: tuple[Kind, ...] = ("server", "prefill", "decode")

#: An idle vLLM prefill half with --shutdown-timeout took this long to exit (evidence.md §10).
PREFILL_SHUTDOWN_EXIT_S = 7.7
#: From SIGTERM to the exit of an idle server: on the kubelet (evidence.md §1, last line but one).
SERVER_EXIT_S = {VLLM.option: (1, 1.5), SGLANG.option: (2, 6.2)}

MIN_NOTICE_S, MAX_NOTICE_S = 1, 86400
MIN_SIZE, MAX_SIZE = 1, 1000


class BoundError(ValueError):
    """An argument out of its bounds; the message is one sentence that names field, value and bounds."""


def check_bound(field: str, value: object, low: float, high: float, unit: str = " seconds") -> float:
    """``value`` as a number within the bounds; NaN and infinity are none."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not low <= number <= high:
        raise BoundError(f"{field} is {value}: it must be a number from {low:g} to {high:g}{unit}.")
    return number


def check_size(value: object) -> int:
    """A number of Pods: whole, and within its bounds."""
    size = check_bound("size", value, MIN_SIZE, MAX_SIZE, " Pods")
    if size != int(size):
        raise BoundError(f"size is {value}: it must be a whole number from {MIN_SIZE} to {MAX_SIZE} Pods.")
    return int(size)


@dataclass(frozen=True)
class Step:
    """One line of the timeline; ``to_s`` None: a moment."""

    from_s: float
    to_s: float | None
    text: str


@dataclass(frozen=True)
class Remark:
    """``topic`` is a word to find it by; ``warning``: something to change."""

    topic: str
    text: str
    warning: bool = False


@dataclass(frozen=True)
class Plan:
    """What one grace means for one role."""

    engine: str
    kind: Kind
    grace_s: float
    size: int
    notice_s: float | None
    settle_until_s: float
    idle_back_s: float
    no_read_after_s: float
    back_by_s: float
    #: When everything ends: the kill at G, or the node's notice where that is shorter.
    end_s: float
    #: The hook waits this long for a request; one that needs more after the delete is cut.
    waited_for_s: float
    steps: tuple[Step, ...]
    remarks: tuple[Remark, ...]


def plan(engine: Engine, kind: Kind, grace_s: float, size: int = 1, notice_s: float | None = None) -> Plan:
    """The plan of a grace. Raises BoundError for a value out of its bounds."""
    grace_s = check_bound("grace", grace_s, MIN_GRACE_S, MAX_GRACE_S)
    size = check_size(size)
    if notice_s is not None:
        notice_s = check_bound("notice", notice_s, MIN_NOTICE_S, MAX_NOTICE_S)
    times = timeline(grace_s)
    assert times.no_read_after_s is not None
    assert times.back_by_s is not None
    settle_s, last_s, back_s = times.settle_until_s, times.no_read_after_s, times.back_by_s
    end_s = grace_s if notice_s is None else min(grace_s, notice_s)
    idle_s = settle_s + (IDLE_READS - 1) * READ_PERIOD_S
    steps: tuple[Step, ...] = (
        Step(0, None, "the delete: routers drop the replica, the kubelet starts the hook"),
        Step(0, settle_s, "the settle: the engine serves as before, late requests included; nothing is read"),
        Step(settle_s, last_s, "one read a second; the hook returns on the second idle read in a row"),
        Step(idle_s, None, "an idle replica's hook is back about here, whatever the grace; SIGTERM follows"),
        Step(last_s, None, f"no read starts after this (G - {LAST_READ_BEFORE_KILL_S:g})"),
        Step(back_s, None, f"the hook is back at the latest (G - {BACK_BEFORE_KILL_S:g}), the engine gets SIGTERM"),
        Step(grace_s, None, "the kubelet kills what is left"),
    )
    if end_s < grace_s:
        notice = Step(end_s, None, "the node's notice is over: everything on it ends")
        steps = tuple(sorted((*steps, notice), key=lambda step: step.from_s))
    return Plan(
        engine=engine.name,
        kind=kind,
        grace_s=grace_s,
        size=size,
        notice_s=notice_s,
        settle_until_s=settle_s,
        idle_back_s=idle_s,
        no_read_after_s=last_s,
        back_by_s=back_s,
        end_s=end_s,
        waited_for_s=min(last_s, end_s),
        steps=steps,
        remarks=tuple(_remarks(engine, kind, grace_s, size, notice_s)),
    )


def _remarks(engine: Engine, kind: Kind, grace_s: float, size: int, notice_s: float | None) -> list[Remark]:
    times = timeline(grace_s)
    last_s, back_s = times.no_read_after_s, times.back_by_s
    assert last_s is not None
    assert back_s is not None
    found = [_cut(engine, kind, grace_s, last_s)]
    if engine is SGLANG and kind != "server":
        found.append(_sglang_split(grace_s))
    elif engine is VLLM and kind == "prefill":
        found.append(
            Remark(
                "owed KV",
                "A vLLM prefill half that has answered but whose KV is not pulled yet shows it in no signal: no gauge, "
                "no /load, no connection. Start it with --shutdown-timeout: it then waits for the pull after SIGTERM; "
                f"even idle it then takes {PREFILL_SHUTDOWN_EXIT_S:g} s to exit. Without it the decode half's request "
                "is lost.",
                warning=True,
            )
        )
    elif kind == "server":
        low_s, high_s = SERVER_EXIT_S[engine.option]
        text = f"An idle {engine.name} server exits {low_s:g} to {high_s:g} s after SIGTERM."
        if high_s > BACK_BEFORE_KILL_S:
            text += f" A hook that used its whole window leaves {BACK_BEFORE_KILL_S:g} s: the kill may come first."
        found.append(Remark("exit", text))
    if notice_s is not None:
        found.append(_notice(grace_s, back_s, last_s, notice_s))
    if size > 1:
        found.append(
            Remark(
                "followers",
                f"{size} Pods make one replica, and only the leader has a listener. A follower's hook needs --leader "
                f"or --leader-env: it then returns when the leader's listener is gone, by {last_s:g} s at the latest. "
                f"Without one it returns after the settle, at {times.settle_until_s:g} s, and its engine takes the "
                "leader's running requests with it.",
                warning=True,
            )
        )
    pods = "its accelerators" if size == 1 else f"the accelerators of its {size} Pods"
    found.append(
        Remark(
            "cost",
            f"A busy replica holds {pods} and its quota for up to {grace_s:g} s on every delete; an idle one leaves "
            f"when its engine exits. A rollout deletes one replica of a role at a time: up to {grace_s:g} s for each.",
        )
    )
    return found


def _cut(engine: Engine, kind: Kind, grace_s: float, last_s: float) -> Remark:
    text = (
        f"A request still running at G - {LAST_READ_BEFORE_KILL_S:g}, so one that needs more than {last_s:g} s after "
        "the delete, is waited for no longer: "
    )
    if engine is VLLM:
        text += "vLLM aborts it when SIGTERM arrives, unless it runs with --shutdown-timeout."
    elif kind == "server":
        text += f"SGLang goes on with it by itself, and the kill at {grace_s:g} s cuts it."
    else:
        text += f"SGLang goes on with it by itself while both halves live, and the kill at {grace_s:g} s cuts it."
    return Remark("cut", text)


def _sglang_split(grace_s: float) -> Remark:
    hook_by_s = grace_s - SPLIT_EXIT_S
    low_s, high_s = SPLIT_EXIT_0_5_23_S
    text = (
        f"A prefill or decode half of releases like 0.5.14 needs up to {SPLIT_EXIT_S} s after SIGTERM to exit, even "
        f"idle: for a clean exit the hook must be back by G - {SPLIT_EXIT_S}, {hook_by_s:g} s after the delete. "
        f"0.5.23 needs {low_s} to {high_s} s. "
    )
    if grace_s < SPLIT_GRACE_S:
        return Remark(
            "exit",
            text
            + f"Set the grace to about {SPLIT_GRACE_S}. A kill there cuts no request that the hook's end would not.",
            warning=True,
        )
    return Remark("exit", text.rstrip())


def _notice(grace_s: float, back_s: float, last_s: float, notice_s: float) -> Remark:
    if notice_s >= grace_s:
        return Remark("notice", f"A node's notice of {notice_s:g} s covers the grace: it changes nothing.")
    text = (
        f"A node's notice of {notice_s:g} s is shorter than the grace of {grace_s:g} s, and the hook is not told: "
        f"at {notice_s:g} s everything is killed, so a request that needs more than {min(notice_s, last_s):g} s after "
        "the delete is cut"
    )
    if notice_s <= back_s:
        text += f", and a busy engine gets no SIGTERM before (the hook waits to {back_s:g} s)"
    text += ". What passes between the notice and the delete comes off it."
    return Remark("notice", text, warning=True)


def drawing(planned: Plan, width: int) -> list[str]:
    """The timeline as a bar of at most ``width`` columns, times above; short parts are drawn wider than they are."""
    parts = [
        (0.0, planned.settle_until_s, "settle", "."),
        (planned.settle_until_s, planned.no_read_after_s, "one read a second", "-"),
        (planned.no_read_after_s, planned.back_by_s, "", " "),
        (planned.back_by_s, planned.grace_s, "exit", "="),
    ]
    parts = [part for part in parts if part[1] > part[0]]
    inner = max(width, 40) - len(parts) - 1 - 6
    least = 6
    spare = inner - least * len(parts)
    bar, edges = "|", [0]
    for from_s, to_s, text, fill in parts:
        columns = least + math.floor(spare * (to_s - from_s) / planned.grace_s)
        bar += (text if len(text) <= columns else "").center(columns, fill) + "|"
        edges.append(len(bar) - 1)
    moments = [0.0] + [part[1] for part in parts]
    head = ""
    for at, moment_s in zip(edges, moments, strict=True):
        head = head.ljust(at) + f"{moment_s:g}"
    lines = [head + " s", bar]
    if planned.end_s < planned.grace_s:
        at = _at(planned.end_s, moments, edges)
        lines.append(" " * at + f"! the notice ends all at {planned.end_s:g} s")
    return lines


def _at(at_s: float, moments: Sequence[float], edges: Sequence[int]) -> int:
    """The column of a time between the drawn moments."""
    for (from_s, to_s), (low, high) in zip(pairwise(moments), pairwise(edges), strict=True):
        if at_s <= to_s:
            return low + round((at_s - from_s) / (to_s - from_s) * (high - low))
    return edges[-1]


def words(planned: Plan, width: int) -> list[str]:
    """The whole plan as lines of text."""
    pods = "" if planned.size == 1 else f", {planned.size} Pods"
    lines = [f"{planned.engine} {planned.kind}{pods}, grace G = {planned.grace_s:g} s; times from the delete.", ""]
    lines += [*drawing(planned, min(width, 100)), ""]
    for step in planned.steps:
        moment = f"{step.from_s:g} s" if step.to_s is None else f"{step.from_s:g} to {step.to_s:g} s"
        lines.append(f"{moment:>14}  {step.text}")
    for remark in planned.remarks:
        lines.append("")
        head = f"{'Note' if not remark.warning else 'WARNING'}, {remark.topic}: "
        lines += textwrap.wrap(head + remark.text, min(width, 100), break_long_words=False, break_on_hyphens=False)
    return lines


def as_json(planned: Plan) -> dict[str, Any]:
    """The plan's fields by name, times in seconds."""
    return asdict(planned)


@click.command("plan")
@click.option(
    "--grace",
    default=str(DEFAULT_GRACE_S),
    show_default=True,
    metavar="SECONDS",
    help=f"terminationGracePeriodSeconds, {MIN_GRACE_S} to {MAX_GRACE_S}.",
)
@click.option("--engine", type=click.Choice(["vllm", "sglang"]), default="vllm", show_default=True)
@click.option(
    "--kind",
    type=click.Choice(KINDS),
    default="server",
    show_default=True,
    help="server, or one half of a prefill/decode pair.",
)
@click.option(
    "--size", default="1", show_default=True, metavar="N", help="Pods of one replica (a leader and followers)."
)
@click.option(
    "--notice", metavar="SECONDS", help="What a spot or preemption notice leaves, where that is shorter than the grace."
)
@click.option("--json", "json_wanted", is_flag=True, help="One JSON object instead of text.")
def plan_command(*, grace: str, engine: str, kind: Kind, size: str, notice: str | None, json_wanted: bool) -> None:
    """What a grace gives: its timeline, the requests it cuts, what it costs.

    Draws the drain window for one terminationGracePeriodSeconds and one role: the settle, the reads, when an idle
    replica's hook is back, when the engine gets SIGTERM at the latest, the kill. Then in words: which requests are cut,
    whether the engine has time to exit, what a shorter node notice leaves, what followers need, and the cost.

    Reads nothing and changes nothing. Exit status: 0; 2 when a value is out of its bounds.
    """
    chosen = engine_by_name(engine)
    assert chosen is not None
    try:
        planned = plan(
            chosen,
            kind,
            check_bound("grace", grace, MIN_GRACE_S, MAX_GRACE_S),
            check_size(size),
            None if notice is None else check_bound("notice", notice, MIN_NOTICE_S, MAX_NOTICE_S),
        )
    except BoundError as error:
        raise click.UsageError(str(error)) from None
    if json_wanted:
        click.echo(json.dumps(as_json(planned)))
    else:
        for line in words(planned, shutil.get_terminal_size((100, 24)).columns):
            click.echo(line)
