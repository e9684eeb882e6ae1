"""The drain window's promises, held against what the API server, the kubelet, containerd and the engine saw."""

from __future__ import annotations

from typing import Literal

from drainagent.timeline import BACK_BEFORE_KILL_S, LAST_READ_BEFORE_KILL_S, SETTLE_S
from hook.figures import Figures
from hook.replica import Seen
from hook.runtime import rfc3339_s

#: The kubelet looks at its containers once a second, so that the hook of a Pod that has just changed starts up to 2 s
#: after the delete. The kubelet counts the grace from there.
STARTED_WITHIN_S = 3.0
SIGTERM_WITHIN_S = 1.0
#: The kubelet counts whole seconds from the hook's return, so that the kill comes up to 1 s past G.
KILL_PAST_GRACE_S = 1.0
#: The kubelet, containerd and a kill on two cores that other Pods share.
NODE_S = 1.0
#: From the answer to a read to its line in the log, and the moment that a read takes.
LOGGED_WITHIN_S = 0.5


def check_window(
    seen: Seen, grace_s: float, figures: Figures | None = None, how: Literal["served", "short"] = "served"
) -> None:
    """The timeline of drain-window.md. ``short``: the kubelet cut the hook off, by a grace that it was not told."""
    hook = seen.hook
    assert hook is not None, f"the kubelet started no hook: {seen.text}"
    assert hook.started_s is not None
    assert hook.ended_s is not None, "the hook has no end"
    started_s = seen.since_s(hook.started_s)
    assert 0 <= started_s <= STARTED_WITHIN_S, f"the hook was started {started_s:.3f} s after the delete"
    for read_s in seen.reads_s:
        assert seen.since_s(read_s) >= SETTLE_S, "read in the settle, as the engine's access log has it"
        late_s = read_s - hook.started_s - (grace_s - LAST_READ_BEFORE_KILL_S)
        assert late_s <= LOGGED_WITHIN_S, f"a read {late_s:.3f} s after G - 5"
    for line in seen.hook_lines:
        assert line["event"] != "read" or line["elapsed_s"] >= SETTLE_S, f"read in the settle: {line}"
    if how == "short":
        return
    assert seen.main.ended_s is not None
    assert seen.since_s(hook.ended_s) >= SETTLE_S, "the hook returned in the settle"
    back_s = hook.ended_s - hook.started_s
    assert back_s <= grace_s - BACK_BEFORE_KILL_S, f"the hook took {back_s:.3f} s of a grace of {grace_s:g}"
    gone_s = seen.main.ended_s - hook.started_s
    assert gone_s <= grace_s + KILL_PAST_GRACE_S + NODE_S, f"the container was there until {gone_s:.3f} s"
    assert seen.sigterm_s is not None, f"the engine saw no SIGTERM: {seen.text}"
    sigterm_s = seen.sigterm_s - hook.ended_s
    # The engine's own line may be a moment earlier than containerd's word of the hook's end.
    assert -0.1 <= sigterm_s <= SIGTERM_WITHIN_S, f"SIGTERM {sigterm_s:.3f} s after the hook's return"
    if seen.terminated is not None:
        check_status(seen)
    if figures is not None:
        for name, meaning, value_s in moments(seen):
            figures.add(name, meaning, value_s, spread=True)


def moments(seen: Seen) -> list[tuple[str, str, float]]:
    """What every window has as figures: name, meaning, seconds."""
    hook = seen.hook
    assert hook is not None
    assert hook.ended_s is not None
    assert seen.sigterm_s is not None
    return [
        (
            "delete to the hook's process",
            "the API server got the delete; containerd started the exec",
            seen.since_s(hook.started_s),
        ),
        ("delete to the hook's first line", "as the container's log has it", seen.since_s(seen.first_hook_line_s)),
        (
            "hook's end to SIGTERM",
            "the exec's end in containerd to the engine's own line",
            seen.sigterm_s - hook.ended_s,
        ),
    ]


def check_status(seen: Seen, exit_code: int | None = None) -> None:
    """The Pod's status tells the same end as containerd, in whole seconds."""
    assert seen.terminated is not None
    assert seen.main.ended_s is not None
    off_s = rfc3339_s(seen.terminated["finishedAt"]) - seen.main.ended_s
    assert -1 <= off_s <= 0.01, f"the Pod's status has the container's end {off_s:.3f} s off containerd's"
    assert seen.terminated["exitCode"] == seen.main.status
    if exit_code is not None:
        assert seen.main.status == exit_code, seen.text
