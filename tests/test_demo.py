"""``drainagent demo``: its pure parts, and the whole of it as a process on both engines and with hooks that fail."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from drainagent.timeline import timeline
from drainagent.workstation.demo import (
    Mark,
    Request,
    Side,
    chart,
    describe_gauges,
    describe_hook,
    describe_in_flight,
    gauges_alone_s,
    kill_at_s,
    legend,
    load,
    summary,
    within_reach,
)

# The load


@pytest.mark.parametrize("grace_s", [15, 17.5, 20, 30, 45, 3600])
def test_every_request_of_the_load_can_finish_in_time(grace_s: float) -> None:
    planned = load(grace_s)
    assert within_reach(planned, timeline(grace_s)) == {request.name for request in planned}
    assert all(request.max_tokens > 0 and request.starts_s < request.ends_s for request in planned)
    # Some end in the settle, some in the reads, and late ones land after the delete.
    assert any(0 < request.ends_s < 5 for request in planned)
    assert any(request.starts_s < 0 and request.ends_s > 5 for request in planned)
    assert [request.name for request in planned if request.starts_s > 0] == ["late, long prompt", "late, short"]


def test_a_request_past_the_last_read_is_out_of_reach() -> None:
    planned = load(30)
    long = replace(planned[0], name="long", ends_s=25.1)
    assert "long" not in within_reach([*planned, long], timeline(30))
    assert "long" in within_reach([*planned, long], timeline(None))


@pytest.mark.parametrize(
    ("hook_back_s", "grace_s", "kill_s"), [(0.0, 30, 30.0), (6.1, 30, 30.1), (27.9, 30, 30.9), (29.5, 30, 31.5)]
)
def test_the_kill_is_the_kubelets(hook_back_s: float, grace_s: float, kill_s: float) -> None:
    assert kill_at_s(hook_back_s, grace_s) == pytest.approx(kill_s)


# What the hook says


def test_gauges_are_named_when_above_zero() -> None:
    assert describe_gauges(None) == describe_gauges({}) == "no gauges"
    assert describe_gauges({"vllm:num_requests_running": 0, "vllm:num_requests_waiting": 0}) == "gauges all 0"
    assert describe_gauges({"vllm:num_requests_running": 3, "vllm:num_requests_waiting": 0}) == "gauges running 3"
    assert describe_gauges({"sglang:num_queue_reqs": 1, "sglang:num_running_reqs": 2.0}) == "gauges queue 1, running 2"


def test_what_is_in_flight_is_said_as_far_as_it_was_read() -> None:
    assert describe_in_flight(None) == describe_in_flight({"connections": None}) == "in flight not read"
    seen = {"connections": 1, "unackedBytes": 10, "unreadBytes": 0, "counter": {"source": "load", "value": 2.0}}
    assert describe_in_flight(seen) == "1 connection, 10 bytes unacknowledged, load 2"
    assert describe_in_flight({"connections": 0, "unackedBytes": None, "counter": None}) == "0 connections"


def test_lines_of_the_hook() -> None:
    read: dict[str, object] = {
        "event": "read",
        "verdict": "busy",
        "reason": "ConnectionsOpen",
        "gauges": {},
        "in_flight": None,
    }
    assert describe_hook(read) == ("read", "busy  (ConnectionsOpen)  no gauges; in flight not read")
    assert describe_hook({"event": "settled"})[0] == "reads"
    assert describe_hook({"event": "outcome", "outcome": "idle", "waited_s": 6.04}) == ("outcome", "idle after 6.0 s")
    assert describe_hook({"event": "start", "reason": "WrongArgument", "message": "no"}) == ("hook", "no")
    assert describe_hook({}) == ("hook", "None")


def test_where_the_gauges_alone_would_have_returned() -> None:
    zero, busy = {"a": 0.0, "b": 0.0}, {"a": 1.0, "b": 0.0}
    assert gauges_alone_s([(5, zero), (6, zero), (7, busy)]) == 6
    assert gauges_alone_s([(5, zero), (6, busy), (7, zero), (8, zero)]) == 8
    assert gauges_alone_s([(5, zero), (6, None), (7, zero)]) is None
    assert gauges_alone_s([]) is None


# The drawings

REQUESTS = [
    Request("one", -2.0, -1.8, 3.0, 10, "finished"),
    Request("late", 2.0, 6.0, 8.0, 10, "finished"),
    Request("lost", -1.0, -0.9, 4.0, 3, "cut", "3 of 10 tokens"),
    Request("nowhere", 2.5, None, 2.5, 0, "refused"),
]
MARKS = [Mark("D", 0.0, "delete"), Mark("R", 9.0, "returned"), Mark("T", 9.0, "SIGTERM")]


@pytest.mark.parametrize("width", [40, 60, 100, 200])
def test_the_chart_has_a_row_for_each_request_within_the_width(width: int) -> None:
    lines = chart(REQUESTS, MARKS, width, (-2.0, 10.0))
    assert len(lines) == len(REQUESTS) + 2
    assert all(len(line) <= width for line in lines)
    assert [line.split()[0] for line in lines[1:-1]] == [request.name for request in REQUESTS]
    assert all(letter in lines[0] for letter in "DRT")


def test_the_chart_shows_waiting_streaming_and_the_loss_at_their_times() -> None:
    # 13 columns of chart: one for each second from -2 to 10, after "nowhere" and two blanks.
    lines = chart(REQUESTS, MARKS, 7 + 2 + 13 + 2 + len("finished 3.0 s"), (-2.0, 10.0))
    cells = [line[9:22].ljust(13) for line in lines]
    assert cells[0] == "  D        RT"
    assert cells[1] == "==|===     | "
    assert cells[2] == "  | ....===| "
    assert cells[3] == " =|===x    | "
    assert cells[4].strip("| ") == "x"
    assert lines[3].endswith("cut 4.0 s")


def test_an_empty_chart_is_no_line() -> None:
    assert chart([], MARKS, 80, (0.0, 1.0)) == []


def test_the_chart_takes_moments_in_one_instant_and_outside_its_span() -> None:
    same = [Mark(letter, 5.0, letter) for letter in "ABC"]
    assert all(letter in chart(REQUESTS[:1], same, 60, (5.0, 5.0))[0] for letter in "ABC")


def test_the_sums_stand_side_by_side() -> None:
    lost = Side(tuple(REQUESTS), 0.0, 0.4, False, "refused")
    kept = Side((REQUESTS[0],), 9.0, None, True, "200")
    lines = summary(kept, lost)
    rows = {line[:25].strip(): line[25:].split() for line in lines}
    assert rows["finished"] == ["1", "2"]
    assert rows["cut"] == ["0", "1"]
    assert rows["refused"] == ["0", "1"]
    assert "(killed)" in rows["engine gone"]
    assert legend(MARKS[:1]) == "D delete 0.0 s"


# The whole

GRACE_S = 15


@dataclass(frozen=True)
class Ran:
    status: int
    text: str


def argv_of(name: str, folder: Path) -> list[str]:
    if name in ("vllm", "sglang"):
        arguments = ["--engine", name, "--grace", str(GRACE_S)]
        return [sys.executable, "-I", "-m", "drainagent", "demo", *arguments, *(["--plain"] if name == "vllm" else [])]
    hooks = {
        "back at once": 'print(\'{"event":"outcome","outcome":"idle","waited_s":0.1}\', file=sys.stderr)',
        "never back": "time.sleep(60)",
        "broken": "sys.exit('no such thing')",
    }
    hook = folder / (name.replace(" ", "-") + ".py")
    hook.write_text("import sys, time\n" + hooks[name] + "\n")
    code = (
        "import sys; from drainagent.catalogue import VLLM; from drainagent.workstation.demo import run_demo; "
        f"raise SystemExit(run_demo(VLLM, {GRACE_S}, {name == 'back at once'}, [sys.executable, {str(hook)!r}]))"
    )
    return [sys.executable, "-c", code]


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """All of them at once, since each mostly waits; the one named "back at once" on a terminal."""
    folder = tmp_path_factory.mktemp("hooks")
    ran: dict[str, Ran] = {}

    def run(name: str) -> None:
        done = subprocess.run(
            argv_of(name, folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=90, check=False
        )
        ran[name] = Ran(done.returncode, done.stdout.decode())

    def run_on_terminal(name: str) -> None:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(argv_of(name, folder), stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL)
        os.close(theirs)
        heard = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # how Linux says that the other end is closed
                break
            heard += part
        os.close(ours)
        ran[name] = Ran(process.wait(90), heard.decode())

    threads = [threading.Thread(target=run, args=(name,)) for name in ("vllm", "sglang", "never back", "broken")]
    threads.append(threading.Thread(target=run_on_terminal, args=("back at once",)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ran


def rows(text: str) -> dict[str, list[str]]:
    """The table at the end: name to (with the hook, without a hook)."""
    return {match[1]: [match[2], match[3]] for match in re.finditer(r"(?m)^(\w+) +(\d+) +(\d+)$", text)}


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_real_hook_loses_nothing(demos: dict[str, Ran], engine: str) -> None:
    ran = demos[engine]
    assert ran.status == 0, ran.text
    table = rows(ran.text)
    asked = table["requests"][0]
    assert table["finished"][0] == asked
    assert table["cut"][0] == table["refused"][0] == "0"
    words = re.findall(r"(?m)^ *-?\d+\.\d s  (\w+)", ran.text)
    for before, after in zip(
        ["delete", "settle", "reads", "read", "outcome", "return", "SIGTERM"],
        ["settle", "reads", "read", "outcome", "return", "SIGTERM", "gone"],
        strict=True,
    ):
        assert words.index(before) < words.index(after), ran.text
    returned = re.search(r"R hook returned (\d+\.\d) s", ran.text)
    assert returned
    assert float(returned[1]) <= GRACE_S - 3


def test_a_vllm_without_a_hook_loses_and_an_sglang_drains_by_itself(demos: dict[str, Ran]) -> None:
    table = rows(demos["vllm"].text)
    assert table["finished"][1] == "0"
    assert "/health at 3 s            200              refused" in demos["vllm"].text
    assert "/health at 3 s            200              503" in demos["sglang"].text


def test_the_gauges_alone_would_have_returned_over_running_requests(demos: dict[str, Ran]) -> None:
    for engine in ("vllm", "sglang"):
        assert re.search(r"read zero twice by \d\.\d s: .* SIGTERM meets [1-9]", demos[engine].text), demos[engine].text


def test_without_a_terminal_there_is_no_control_code(demos: dict[str, Ran]) -> None:
    for name, ran in demos.items():
        if name != "back at once":
            assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", ran.text)


def test_a_hook_that_is_back_at_once_loses_requests_and_the_demo_says_so(demos: dict[str, Ran]) -> None:
    ran = demos["back at once"]
    assert ran.status == 1
    assert re.search(r"Lost, though there was time: .*long prompt", ran.text)
    # On a terminal: colours, a status line rewritten in place, and no other control code.
    plain = re.sub(r"\x1b\[\d+m", "", ran.text)
    assert plain != ran.text
    assert "\r" in plain.replace("\r\n", "\n")
    assert not re.search(r"[\x00-\x09\x0b\x0c\x0e-\x1f\x7f]", plain)


def test_a_hook_that_fails_or_never_returns_ends_the_demo_with_1(demos: dict[str, Ran]) -> None:
    assert demos["broken"].status == 1
    assert "the hook is back (status 1)" in demos["broken"].text
    assert "no such thing" in demos["broken"].text
    never = demos["never back"]
    assert never.status == 1
    # As the kubelet has it: SIGTERM comes at the grace, and nothing was lost by then.
    sigterm = re.search(r"T SIGTERM (\d+\.\d) s", never.text)
    assert sigterm
    assert float(sigterm[1]) == pytest.approx(GRACE_S, abs=1.0)
    assert "The hook did not end as it should" in never.text


@pytest.mark.parametrize("grace", ["nan", "14", "3601", "soon"])
def test_a_wrong_grace_ends_with_2(grace: str) -> None:
    code = "from drainagent.workstation.demo import demo_command; demo_command()"
    argv = [sys.executable, "-c", code, "--grace", grace]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    assert ran.returncode == 2
    assert f"grace is {grace}: it must be a number from 15 to 3600 seconds." in ran.stderr


def test_a_demo_that_is_stopped_leaves_no_process_behind() -> None:
    process = subprocess.Popen([sys.executable, "-I", "-m", "drainagent", "demo", "--plain"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    while b"delete" not in process.stdout.readline().split():
        assert process.poll() is None
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii").split()
    assert len(children) >= 2
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGTERM
    assert not any(Path(f"/proc/{child}").exists() for child in children)
