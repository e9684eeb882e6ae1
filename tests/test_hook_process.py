"""The real hook process: its timeline under trouble, and the safe value of every wrong argument."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from hookproc import (
    BUSY,
    GRACE_S,
    IDLE,
    ROOT,
    SGLANG_BUSY,
    SITE_PACKAGES,
    Behaviour,
    Case,
    Lab,
    Run,
    alone_on_the_network,
    answer,
    as_user,
    closed_port,
    command_line_in,
    concurrent,
    copy_package,
    drip,
    flood,
    in_mounts,
    need,
    need_root,
    pages,
    program,
    reachable,
    silent,
    started_cases,  # noqa: F401 - the fixture behind ``concurrent``
    status,
)

# ---------------------------------------------------------------------------------------------------------------------
# The rule, on the clock


@concurrent
def test_idle_returns_on_the_second_idle_read(lab: Lab) -> Case:
    listener = lab.listener(pages(IDLE))
    run = lab.hook("--engine", "vllm", "--url", listener.url)
    yield
    end = run.end()
    run.keeps_the_timeline(listener, reads=2)
    assert (end.status, end.outcome) == (0, "idle")
    run.took(6)
    assert end.last["waited_s"] == pytest.approx(end.took_s, abs=0.2)
    assert end.last["gauges"] == {"vllm:num_requests_running": 0, "vllm:num_requests_waiting": 0}


@concurrent
def test_busy_then_idle(lab: Lab) -> Case:
    listener = lab.listener(pages(BUSY, BUSY, IDLE))
    run = lab.hook("--engine", "vllm", "--url", listener.url)
    yield
    end = run.end()
    run.keeps_the_timeline(listener, reads=4)
    assert (end.status, end.outcome) == (0, "idle")
    assert [line["verdict"] for line in end.reads] == ["busy", "busy", "idle", "idle"]


@concurrent
def test_one_idle_read_between_busy_ones_ends_nothing(lab: Lab) -> Case:
    listener = lab.listener(pages(IDLE, BUSY, IDLE, BUSY, IDLE))
    run = lab.hook("--engine", "vllm", "--url", listener.url)
    yield
    end = run.end()
    run.keeps_the_timeline(listener)
    assert len(listener.visits) == 5
    run.took(GRACE_S - 5)
    assert (end.status, end.outcome) == (0, "deadline")


@concurrent
def test_the_deadlines_last_line_names_gauges_peers_and_what_never_moved(lab: Lab) -> Case:
    listener = lab.listener(pages(BUSY))
    client = listener.client()
    run = lab.hook("--engine", "vllm", "--url", listener.url)
    yield
    end = run.end()
    run.keeps_the_timeline(listener, reads=5)
    assert (end.status, end.outcome) == (0, "deadline")
    run.took(GRACE_S - 5)
    assert "vllm:num_requests_running 3 (unchanged for 5 reads)" in end.cause
    assert "vllm:num_requests_waiting 0" in end.cause
    host, port = client.getsockname()
    assert f"{host}:{port}" in end.cause


@concurrent
def test_a_gauge_that_moved_is_not_called_unchanged(lab: Lab) -> Case:
    listener = lab.listener(pages(BUSY.replace(b"3.0", b"4.0"), BUSY))
    run = lab.hook("--engine", "vllm", "--url", listener.url)
    yield
    assert "vllm:num_requests_running 3;" in run.end().cause


@concurrent
def test_a_lingering_connection_keeps_idle_gauges_busy_and_its_end_ends_that(lab: Lab) -> Case:
    listener = lab.listener(pages(IDLE))
    client = listener.client()
    run = lab.hook("--engine", "vllm", "--url", listener.url)
    run.call_at(7.5, client.close)
    yield
    end = run.end()
    run.keeps_the_timeline(listener, reads=5)
    assert [line["reason"] for line in end.reads] == ["ConnectionsOpen"] * 3 + [None] * 2
    assert (end.status, end.outcome) == (0, "idle")


@concurrent
def test_text_lines_for_people(lab: Lab) -> Case:
    listener = lab.listener(pages(BUSY))
    run = lab.hook("--engine", "vllm", "--url", listener.url, log_format=None)
    yield
    text = run.end().text.splitlines()
    assert all(re.match(r"drainagent: +[0-9]+\.[0-9] s: \S", line) for line in text), text
    assert "outcome deadline after 10." in text[-1]


# ---------------------------------------------------------------------------------------------------------------------
# Nothing to measure


@dataclass(frozen=True)
class Unmeasurable:
    """A listener that cannot be measured, and the reason in the log."""

    name: str
    behave: Behaviour | None
    reason: str
    https: bool = False

    def __str__(self) -> str:
        return self.name

    def url(self, lab: Lab) -> str:
        if self.behave is None:
            return f"http://127.0.0.1:{closed_port()}/metrics"
        url = lab.listener(self.behave).url
        return url.replace("http:", "https:") if self.https else url


UNMEASURABLE = (
    Unmeasurable("refused", None, "ConnectionRefused"),
    Unmeasurable("404", status("404 Not Found"), "HTTPError"),
    Unmeasurable("500", status("500 Internal Server Error"), "HTTPError"),
    Unmeasurable("plain", pages(IDLE), "TLSFailed", https=True),
)


@concurrent
@pytest.mark.parametrize("case", UNMEASURABLE, ids=str)
def test_unmeasurable_ends_right_after_the_settle(lab: Lab, case: Unmeasurable) -> Case:
    run = lab.hook("--engine", "vllm", "--url", case.url(lab))
    yield
    end = run.end()
    assert (end.status, end.outcome) == (0, "unmeasurable")
    run.took(5)
    assert case.reason in end.cause


@concurrent
@pytest.mark.parametrize("code", ["404 Not Found", "503 Service Unavailable"])
def test_unmeasurable_waits_while_clients_are_connected(lab: Lab, code: str) -> Case:
    listener = lab.listener(status(code))
    client = listener.client()
    run = lab.hook("--engine", "vllm", "--url", listener.url)
    run.call_at(7.5, client.close)
    yield
    end = run.end()
    run.keeps_the_timeline(listener, reads=4)
    assert (end.status, end.outcome) == (0, "unmeasurable")
    run.took(8)


@concurrent
def test_unmeasurable_waits_for_no_client_under_gauges_only(lab: Lab) -> Case:
    listener = lab.listener(status("404 Not Found"))
    listener.client()
    run = lab.hook("--engine", "vllm", "--url", listener.url, "--gauges-only")
    yield
    end = run.end()
    run.keeps_the_timeline(listener, reads=1)
    assert (end.status, end.outcome) == (0, "unmeasurable")


@concurrent
def test_nothing_found_ends_right_after_the_settle(lab: Lab) -> Case:
    run = lab.hook(through=alone_on_the_network())
    yield
    end = run.end()
    assert (end.status, end.outcome) == (0, "unmeasurable")
    run.took(5)


# ---------------------------------------------------------------------------------------------------------------------
# Listeners that misbehave


@dataclass(frozen=True)
class Trouble:
    """A listener that gives no whole page. ``slow``: each read takes its whole bound of 2 s."""

    name: str
    behave: Behaviour
    reason: str
    slow: bool = True

    def __str__(self) -> str:
        return self.name


TROUBLES = (
    Trouble("silent", silent, "TimedOut"),
    Trouble("drips-header", drip(b"HTTP/1.1 200 OK\r\nX-Slow: y"), "TimedOut"),
    Trouble("drips-body", drip(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n# HELP x", 0.01), "TimedOut"),
    Trouble("informs", flood(b"HTTP/1.1 100 Continue\r\n\r\n" * 5), "ProtocolError", slow=False),
    Trouble("floods-header", flood(b"HTTP/1.1 200 OK\r\nX: "), "ProtocolError", slow=False),
    Trouble("floods-body", flood(b"HTTP/1.1 200 OK\r\n\r\n"), "PageTooLarge", slow=False),
    Trouble("half-page", lambda c, _: c.sendall(answer(IDLE[:-3])), "PageCut", slow=False),
)


@concurrent
@pytest.mark.parametrize("trouble", TROUBLES, ids=str)
def test_a_listener_in_trouble_is_busy_to_the_deadline(lab: Lab, trouble: Trouble) -> Case:
    listener = lab.listener(trouble.behave)
    run = lab.hook("--engine", "vllm", "--url", listener.url)
    yield
    end = run.end()
    run.keeps_the_timeline(listener, reads=None if trouble.slow else 5)
    assert len(listener.visits) >= 2
    assert (end.status, end.outcome) == (0, "deadline")
    run.took(GRACE_S - 5, late_s=2)
    assert {line["reason"] for line in end.reads} == {trouble.reason}, end.text


@concurrent
def test_a_last_read_of_two_seconds_ends_before_g_minus_3(lab: Lab) -> Case:
    def behave(connection: object, number: int) -> None:
        (pages(BUSY) if number < 4 else silent)(connection, number)  # type: ignore[arg-type]

    listener = lab.listener(behave)
    run = lab.hook("--engine", "vllm", "--url", listener.url)
    yield
    end = run.end()
    run.keeps_the_timeline(listener, reads=5)
    assert (end.status, end.outcome) == (0, "deadline")
    run.took(10.9, late_s=1.1)


@concurrent
def test_two_listeners_are_read_at_once_and_one_that_hangs_is_busy(lab: Lab) -> Case:
    idle, hangs = lab.listener(pages(IDLE)), lab.listener(silent)
    run = lab.hook("--engine", "vllm", "--url", idle.url, "--url", hangs.url)
    yield
    end = run.end()
    run.keeps_the_timeline(idle, hangs)
    assert len(idle.visits) == len(hangs.visits) >= 2
    assert all(abs(one.arrived_s - other.arrived_s) < 0.3 for one, other in zip(idle.visits, hangs.visits, strict=True))
    assert (end.status, end.outcome) == (0, "deadline")


@concurrent
def test_sums_beyond_every_float_are_busy(lab: Lab) -> Case:
    """Two finite samples whose sum is no number any more."""
    page = b'vllm:num_requests_running{engine="0"} 1.7e308\nvllm:num_requests_running{engine="1"} 1.7e308\n'
    listener = lab.listener(pages(page + b"vllm:num_requests_waiting 0\n"))
    run = lab.hook("--engine", "vllm", "--url", listener.url)
    yield
    end = run.end()
    run.keeps_the_timeline(listener, reads=5)
    assert (end.status, end.outcome) == (0, "deadline")


# ---------------------------------------------------------------------------------------------------------------------
# Its own failures


def shadow(module: str, lab: Lab, text: str) -> list[str]:
    """Words that start a hook whose ``module`` of site-packages holds ``text``."""
    file = lab.new_folder() / "shadow.py"
    file.write_text(text)
    return in_mounts(f"mount --bind '{file}' '{SITE_PACKAGES / module}'")


UNCACHED = (sys.executable, "-I", "-B", "-m", "drainagent", "hook")


@concurrent
@pytest.mark.parametrize(
    "text",
    ["import time\ntime.sleep(3600)\n", "import re\nre.match('(a+)+$', 'a' * 60 + 'b')\n"],
    ids=["sleeps", "spins"],
)
def test_a_stuck_import_is_ended_by_g_minus_3(lab: Lab, text: str) -> Case:
    """``spins``: in C, holding the interpreter's lock."""
    run = lab.hook(command=UNCACHED, through=shadow("h11/__init__.py", lab, text), spins="match" in text)
    yield
    run.took(GRACE_S - 5, late_s=2)


@concurrent
def test_an_import_that_fails_waits_to_the_deadline(lab: Lab) -> Case:
    run = lab.hook(command=UNCACHED, through=shadow("h11/__init__.py", lab, "raise OSError('a bad disk')\n"))
    yield
    end = run.end()
    run.took(GRACE_S - 5)
    assert "a bad disk" in end.text


@dataclass(frozen=True)
class Broken:
    """A package of ours with a fault in one module."""

    name: str
    changes: dict[str, str]

    def __str__(self) -> str:
        return self.name


RAISES = "def {0}(*a, **k): raise RuntimeError('broken')"
BROKEN = (
    *(
        Broken(f"import-of-{module}", {module: "raise RuntimeError('broken')"})
        for module in ("verdict", "hook", "settings", "timeline", "watchdog", "cli", "url", "catalogue")
    ),
    Broken("syntax", {"hook": "def ("}),
    Broken("rule", {"window": RAISES.format("next_action")}),
    Broken("report", {"report": "Report.read = lambda *a: 1 / 0"}),
    Broken("settings-call", {"settings": RAISES.format("hook_settings")}),
    Broken("memory", {"window": "def after_read(*a): raise MemoryError"}),
)


@concurrent
@pytest.mark.parametrize("broken", BROKEN, ids=str)
def test_its_own_failure_keeps_the_engine_serving_to_the_deadline(lab: Lab, broken: Broken) -> Case:
    listener = lab.listener(pages(BUSY))
    command = command_line_in(copy_package(lab.new_folder(), **broken.changes))
    run = lab.hook("--engine", "vllm", "--url", listener.url, command=command)
    yield
    run.keeps_the_timeline(listener)
    run.took(GRACE_S - 5)


@concurrent
@pytest.mark.parametrize("module", ["verdict", "sockets", "page"])
def test_a_read_that_fails_inside_is_busy(lab: Lab, module: str) -> Case:
    broken = {"verdict": ("hook", "judge_all"), "sockets": ("reader", "clients"), "page": ("reader", "read_page")}
    function = broken[module]
    listener = lab.listener(pages(IDLE))
    command = command_line_in(copy_package(lab.new_folder(), **{function[0]: RAISES.format(function[1])}))
    run = lab.hook("--engine", "vllm", "--url", listener.url, command=command)
    yield
    end = run.end()
    run.keeps_the_timeline(listener, reads=5)
    assert (end.status, end.outcome) == (0, "deadline")
    assert {line["reason"] for line in end.reads} == {"InternalError"}


@concurrent
def test_a_container_that_may_start_no_thread(lab: Lab) -> Case:
    """Its limit of processes is reached: an idle replica is still seen to be idle."""
    listener = lab.listener(pages(IDLE))
    through = [*in_mounts(reachable()), *as_user(23456), program("prlimit"), "--nproc=1"]
    run = lab.hook("--engine", "vllm", "--url", listener.url, through=through)
    yield
    end = run.end()
    run.keeps_the_timeline(listener)
    assert (end.status, end.outcome) == (0, "idle")


@concurrent
@pytest.mark.parametrize("back_at_s", [0.5, 6.5])
def test_the_wall_clock_set_back_moves_nothing(lab: Lab, back_at_s: float) -> Case:
    before = (
        "import time\n"
        f"real, began = time.time, time.monotonic()\n"
        f"time.time = lambda: real() - (86400 if time.monotonic() - began > {back_at_s} else 0)\n"
    )
    listener = lab.listener(pages(BUSY))
    run = lab.hook("--engine", "vllm", "--url", listener.url, command=command_line_in(Path("/nonexistent"), before))
    yield
    end = run.end()
    run.keeps_the_timeline(listener, reads=5)
    assert (end.status, end.outcome) == (0, "deadline")
    times = [line["time"] for line in end.lines]
    assert times != sorted(times) or back_at_s < 1, "the wall clock was not set back"


@concurrent
@pytest.mark.parametrize("clock", ["open", "time.monotonic", "time.clock_gettime"])
def test_a_pause_while_it_asks_for_its_start_shortens_no_settle(lab: Lab, clock: str) -> Case:
    """A busy machine may take the processor away between any two looks at a clock."""
    module, _, name = clock.rpartition(".")
    before = (
        f"import time, {module or 'builtins'} as module\n"
        f"asked = module.{name}\n"
        "def slow(*a, **k):\n"
        "    answer = asked(*a, **k)\n"
        "    if sys._getframe(1).f_code.co_name == 'process_start_s': time.sleep(0.4)\n"
        "    return answer\n"
        f"module.{name} = slow\n"
    )
    listener = lab.listener(pages(IDLE))
    run = lab.hook("--engine", "vllm", "--url", listener.url, command=command_line_in(Path("/nonexistent"), before))
    yield
    end = run.end()
    assert all(at_s >= 5 for at_s in run.arrivals_s(listener)), run.arrivals_s(listener)
    run.took(6, late_s=0.9)
    assert (end.status, end.outcome) == (0, "idle")


@concurrent
@pytest.mark.parametrize(
    "offsets", [("--boottime=5000000", "--monotonic=300"), ("--boottime=10", "--monotonic=900000")], ids="-".join
)
def test_clocks_that_a_time_namespace_moved(lab: Lab, offsets: tuple[str, str]) -> Case:
    need_root()
    unshare = program("unshare")
    need(unshare, "-T", *offsets, "true")
    listener = lab.listener(pages(BUSY, IDLE))
    run = lab.hook("--engine", "vllm", "--url", listener.url, through=[unshare, "-T", *offsets])
    yield
    end = run.end()
    run.keeps_the_timeline(listener, reads=3)
    assert (end.status, end.outcome) == (0, "idle")


# ---------------------------------------------------------------------------------------------------------------------
# Signals


@concurrent
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: signal.Signals(number).name)
@pytest.mark.parametrize(
    ("behave", "at_s"),
    [(pages(BUSY), 2.0), (pages(BUSY), 6.5), (silent, 6.0), (drip(b"HTTP/1.1 200 OK\r\nX: y", 0.01), 6.0)],
    ids=["settle", "between-reads", "in-a-read", "in-a-drip"],
)
def test_a_signal_to_the_hook_ends_it_at_once(lab: Lab, number: signal.Signals, behave: Behaviour, at_s: float) -> Case:
    listener = lab.listener(behave)
    run = lab.hook("--engine", "vllm", "--url", listener.url)
    run.signal_at(at_s, number)
    yield
    end = run.end()
    run.keeps_the_timeline(listener)
    assert (end.status, end.outcome) == (0, "terminated")
    run.took(at_s)
    assert number.name in end.cause


@concurrent
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: signal.Signals(number).name)
def test_a_signal_in_a_read_of_several_listeners(lab: Lab, number: signal.Signals) -> Case:
    listeners = [lab.listener(silent), lab.listener(silent)]
    run = lab.hook("--engine", "vllm", *(word for one in listeners for word in ("--url", one.url)))
    run.signal_at(6.0, number)
    yield
    end = run.end()
    assert (end.status, end.outcome) == (0, "terminated")
    run.took(6)


@concurrent
@pytest.mark.parametrize("behave", [pages(BUSY), silent], ids=["busy", "silent"])
@pytest.mark.parametrize("stopped_at_s", [3.0, 6.2, 9.5])
def test_stopped_over_the_deadline_it_is_gone_as_soon_as_it_goes_on(
    lab: Lab, behave: Behaviour, stopped_at_s: float
) -> Case:
    listener = lab.listener(behave)
    run = lab.hook("--engine", "vllm", "--url", listener.url)
    run.signal_at(stopped_at_s, signal.SIGSTOP)
    run.signal_at(13.0, signal.SIGCONT)
    yield
    end = run.end()
    run.took(13)
    assert all(at_s < 10 for at_s in run.arrivals_s(listener))
    assert end.status == 0
    assert end.outcome == "deadline"


@concurrent
def test_stopped_for_a_while_it_goes_on_on_its_grid(lab: Lab) -> Case:
    listener = lab.listener(pages(BUSY))
    run = lab.hook("--engine", "vllm", "--url", listener.url)
    run.signal_at(6.2, signal.SIGSTOP)
    run.signal_at(8.1, signal.SIGCONT)
    yield
    end = run.end()
    run.keeps_the_timeline(listener)
    slots = [int(at_s) for at_s in run.arrivals_s(listener)]
    assert slots in ([5, 6, 8, 9], [5, 6, 8], [5, 6, 9])  # by how late the signals came
    assert (end.status, end.outcome) == (0, "deadline")


_WATCHED = """
import sys, time
sys.path.insert(0, sys.argv[1])
from drainagent.report import LineWriter
from drainagent.watchdog import Watchdog

def last_words():
    time.sleep(0.05)  # as any system call in them may: others run meanwhile
    LineWriter(None).write("the last line")

Watchdog(time.monotonic() + 0.1, 7, last_words).start()
time.sleep(60)
"""


def test_the_watchdogs_last_words_are_never_lost() -> None:
    """Its thread and its signal handler come at the same moment: whichever is first, the line is written, once."""
    words = [sys.executable, "-I", "-S", "-c", _WATCHED, str(ROOT)]
    runs = [subprocess.Popen(words, stderr=subprocess.PIPE, env={}) for _ in range(4)]
    ends = [(run.communicate()[1], run.returncode) for run in runs]
    assert ends == [(b"the last line\n", 7)] * len(runs)


# ---------------------------------------------------------------------------------------------------------------------
# Wrong arguments: the window is finished, the status is 2, and a sentence names field, value and bound


@dataclass(frozen=True)
class Wrong:
    """Words beside ``--url``, and for each sentence the words it must hold."""

    words: tuple[str, ...]
    sentences: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        return " ".join(self.words)


WRONG = (
    Wrong(("--engine", "vlmm"), (("--engine", "vlmm", "vllm", "sglang"),)),
    Wrong(("--engine", ""), (("--engine", "''", "vllm", "sglang"),)),
    Wrong(("--settle", "3"), (("--settle", "'3'", "5", "3600"),)),
    Wrong(("--settle", "nan"), (("--settle", "'nan'", "5", "3600"),)),
    Wrong(("--settle", "9999"), (("--settle", "'9999'", "5", "3600"),)),
    Wrong(("--settle", ""), (("--settle", "''", "5", "3600"),)),
    Wrong(("--settle=-5",), (("--settle", "'-5'", "5", "3600"),)),
    Wrong(("--api-servers", "0"), (("--api-servers", "'0'", "1", "1024"),)),
    Wrong(("--api-servers", "two"), (("--api-servers", "'two'", "1", "1024"),)),
    Wrong(("--api-servers", "1" * 5000), (("--api-servers", "1", "1024"),)),
    Wrong(("--ignore-peer", "10.0.0.0/33"), (("--ignore-peer", "10.0.0.0/33"),)),
    Wrong(("--ignore-peer", "proxy"), (("--ignore-peer", "'proxy'"),)),
    Wrong(("--gauges-only=yes",), (("--gauges-only", "value"),)),
    Wrong(("--load-tracking=1",), (("--load-tracking", "value"),)),
    Wrong(("--no-load-tracking=1",), (("--no-load-tracking", "value"),)),
    Wrong(("--termination-log=/tmp/x",), (("--termination-log", "value"),)),
    Wrong(("--graze=15",), (("--graze=15", "option"),)),
    Wrong(("--eng", "vllm"), (("--eng", "option"), ("vllm",))),
    Wrong(("-e", "vllm"), (("-e", "option"), ("vllm",))),
    Wrong(("-threshold",), (("-threshold", "option"),)),
    Wrong(("-path=/metrics",), (("-path=/metrics", "option"),)),
    Wrong(("stray", ""), (("'stray'",), ("''",))),
    Wrong(("stray word \udcff \n €",), (("stray word",),)),
    Wrong(("--engine=a", "--settle=b", "--api-servers=c", "--ignore-peer=d", "--x"), (("--x",), *(((w,)) for w in (
        "--engine", "--settle", "--api-servers", "--ignore-peer")))),
)  # fmt: skip


@concurrent
@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: ascii(str(wrong))[1:40])
def test_a_wrong_argument_finishes_the_window(lab: Lab, wrong: Wrong) -> Case:
    listener = lab.listener(pages(BUSY, IDLE))
    run = lab.hook(
        "--url", listener.url, *(os.fsencode(word).decode("utf-8", "surrogateescape") for word in wrong.words)
    )
    yield
    end = run.end()
    run.keeps_the_timeline(listener, reads=3)
    assert (end.status, end.outcome) == (2, "idle")
    assert len(end.wrong) == len(wrong.sentences), end.wrong
    for words in wrong.sentences:
        assert any(all(word in sentence for word in words) for sentence in end.wrong), (words, end.wrong)


@concurrent
def test_a_wrong_log_format_is_text(lab: Lab) -> Case:
    listener = lab.listener(pages(IDLE))
    run = lab.hook("--url", listener.url, log_format="xml")
    yield
    end = run.end()
    run.keeps_the_timeline(listener, reads=2)
    assert end.status == 2
    assert "--log-format 'xml' must be text or json" in end.text
    assert "outcome idle" in end.text.splitlines()[-1]


@concurrent
@pytest.mark.parametrize(
    "option", ["--engine", "--url", "--settle", "--api-servers", "--ignore-peer", "--grace", "--leader"]
)
def test_an_option_without_its_value(lab: Lab, option: str) -> Case:
    listener = lab.listener(pages(BUSY, IDLE))
    run = lab.hook("--url", listener.url, "--log-format", "json", "--grace", "15", option, grace=None, log_format=None)
    yield
    end = run.end()
    run.keeps_the_timeline(listener)
    assert (end.status, end.outcome) == (2, "idle")
    assert any(option in sentence for sentence in end.wrong)


@concurrent
@pytest.mark.parametrize("before", ["--engine", "--"])
def test_a_word_without_its_value_loses_no_other_option(lab: Lab, before: str) -> Case:
    """``--engine --grace 15``: the engine is missing, the grace is not."""
    listener = lab.listener(pages(BUSY))
    run = lab.hook("--url", listener.url, "--log-format", "json", before, "--grace", "15", grace=None, log_format=None)
    yield
    end = run.end()
    run.keeps_the_timeline(listener, reads=5)
    assert (end.status, end.outcome) == (2, "deadline"), end


@concurrent
def test_given_twice_the_last_one_counts(lab: Lab) -> Case:
    listener = lab.listener(pages(BUSY))
    run = lab.hook("--grace", "600", "--engine", "nonsense", "--engine", "vllm", "--url", listener.url)
    yield
    end = run.end()
    run.keeps_the_timeline(listener, reads=5)
    assert (end.status, end.outcome) == (0, "deadline")


@concurrent
@pytest.mark.parametrize("page", [BUSY, SGLANG_BUSY], ids=["vllm", "sglang"])
def test_an_unknown_engine_means_both_catalogues(lab: Lab, page: bytes) -> Case:
    listener = lab.listener(pages(page, IDLE))
    run = lab.hook("--engine", "tgi", "--url", listener.url, "--gauges-only")
    yield
    end = run.end()
    run.keeps_the_timeline(listener, reads=3)
    assert (end.status, end.outcome) == (2, "idle")
    assert [line["verdict"] for line in end.reads] == ["busy", "idle", "idle"]


@concurrent
@pytest.mark.parametrize("grace", [None, "", "nan", "inf", "1_5", "15s", "--gauges-only"])
def test_a_grace_that_is_no_number_sets_no_deadline(lab: Lab, grace: str | None) -> Case:
    listener = lab.listener(pages(*[BUSY] * 6, IDLE))
    run = lab.hook("--engine", "vllm", "--url", listener.url, grace=grace)
    yield
    end = run.end()
    run.keeps_the_timeline(listener, grace_s=3600, reads=8)
    assert (end.status, end.outcome) == (2, "idle")
    assert "no deadline of its own" in end.text
    assert any(all(word in sentence for word in ("--grace", "15", "3600")) for sentence in end.wrong)


@concurrent
@pytest.mark.parametrize("grace", ["6", "1", "0", "-5", "-1e300", "1e-9", "7.5"])
def test_a_grace_without_room_keeps_the_settle_and_leaves(lab: Lab, grace: str) -> Case:
    listener = lab.listener(pages(BUSY))
    run = lab.hook("--engine", "vllm", "--url", listener.url, grace=grace)
    yield
    end = run.end()
    assert (end.status, end.outcome) == (2, "deadline")
    run.took(5, late_s=0.5)
    assert listener.visits == []
    assert all(word in end.wrong[0] for word in ("--grace", f"{float(grace):g}", "15", "3600"))


@concurrent
@pytest.mark.parametrize("grace", ["3601", "1e9", "1e10", "1e18", "1e300"])
def test_a_grace_beyond_the_bound_is_used(lab: Lab, grace: str) -> Case:
    listener = lab.listener(pages(*[BUSY] * 3, IDLE))
    run = lab.hook("--engine", "vllm", "--url", listener.url, grace=grace)
    yield
    end = run.end()
    run.keeps_the_timeline(listener, grace_s=float(grace), reads=5)
    assert (end.status, end.outcome) == (2, "idle")
    assert "Traceback" not in end.text
    assert any(all(word in sentence for word in ("--grace", "15", "3600")) for sentence in end.wrong)


@concurrent
def test_a_grace_a_little_short_reads_while_there_is_time(lab: Lab) -> Case:
    listener = lab.listener(pages(BUSY))
    run = lab.hook("--engine", "vllm", "--url", listener.url, grace="12.5")
    yield
    end = run.end()
    run.keeps_the_timeline(listener, grace_s=12.5, reads=3)
    assert (end.status, end.outcome) == (2, "deadline")
    run.took(7.5)


@concurrent
@pytest.mark.parametrize(
    ("settle", "until_s", "exit_status"), [("7", 7, 0), ("5.0", 5, 0), ("9.5", 9.5, 0), ("12", 10, 2)]
)
def test_a_longer_settle(lab: Lab, settle: str, until_s: float, exit_status: int) -> Case:
    listener = lab.listener(pages(BUSY))
    run = lab.hook("--engine", "vllm", "--url", listener.url, "--settle", settle)
    yield
    end = run.end()
    run.keeps_the_timeline(listener, settle_s=until_s)
    assert (end.status, end.outcome) == (exit_status, "deadline")
    run.took(GRACE_S - 5)
    assert [int(at_s) for at_s in run.arrivals_s(listener)] == list(range(int(until_s), 10))


# A wrong URL: what is found instead, and never a cut.


def engine_program(lab: Lab, name: str, replies: list[bytes]) -> str:
    """Shell that starts a server by that name on the port in its command line, one reply a request."""
    script = lab.new_folder() / name
    script.write_text(
        f"import socket, sys\nreplies = {replies!r}\n"
        "listener = socket.create_server(('127.0.0.1', int(sys.argv[sys.argv.index('--port') + 1])))\n"
        "while True:\n"
        "    client = listener.accept()[0]\n"
        "    if client.recv(65536):\n"
        "        client.sendall(replies.pop(0) if len(replies) > 1 else replies[0])\n"
        "        client.recv(65536)\n"
        "    client.close()\n"
    )
    return f"{program('setpriv')} --pdeathsig kill {sys.executable} -I {script} serve m --port"


WRONG_URLS = (
    "http://example.com/metrics",
    "http://127.0.0.1:99999/metrics",
    "http://203.0.113.7:8000/metrics",
    "http://224.0.0.1:8000/metrics",
    "http://255.255.255.255:8000/metrics",
    "",
)


@concurrent
@pytest.mark.parametrize("url", WRONG_URLS)
def test_a_wrong_url_where_nothing_is_found_waits_to_the_deadline(lab: Lab, url: str) -> Case:
    run = lab.hook("--engine", "vllm", "--url", url, through=alone_on_the_network())
    yield
    end = run.end()
    assert (end.status, end.outcome) == (2, "deadline")
    run.took(GRACE_S - 5)
    assert any("--url" in sentence and url in sentence for sentence in end.wrong)


@concurrent
def test_a_wrong_url_discovers_the_engine(lab: Lab) -> Case:
    start = engine_program(lab, "vllm", [answer(BUSY), answer(BUSY), answer(IDLE)]) + " 18123 &"
    run = lab.hook("--url", "http://10.254.254.254:8000/metrics", through=alone_on_the_network(start))
    yield
    end = run.end()
    assert (end.status, end.outcome) == (2, "idle"), end.text
    assert [line["verdict"] for line in end.reads] == ["busy", "busy", "idle", "idle"]


@concurrent
def test_no_url_discovers_the_engine(lab: Lab) -> Case:
    start = engine_program(lab, "vllm", [answer(BUSY), answer(BUSY), answer(IDLE)]) + " 18123 &"
    run = lab.hook(through=alone_on_the_network(start))
    yield
    end = run.end()
    assert (end.status, end.outcome) == (0, "idle"), end.text
    assert [line["verdict"] for line in end.reads] == ["busy", "busy", "idle", "idle"]


@concurrent
def test_a_wrong_url_and_a_stranger_on_the_usual_port_cut_nothing(lab: Lab) -> Case:
    """The engine is not recognised and listens elsewhere: the 404 of another server on 8000 is no reason to end."""
    start = engine_program(lab, "sidecar", [answer(b"no\n", "404 Not Found")]) + " 8000 &"
    run = lab.hook("--engine", "vllm", "--url", "http://127.0.0.1:99999/", through=alone_on_the_network(start))
    yield
    end = run.end()
    assert (end.status, end.outcome) == (2, "deadline"), end.text


@concurrent
def test_a_wrong_url_beside_one_that_refuses_cuts_nothing(lab: Lab) -> Case:
    right = f"http://127.0.0.1:{closed_port()}/metrics"
    run = lab.hook("--url", right, "--url", "http://127.0.0.1:99999/", through=alone_on_the_network())
    yield
    end = run.end()
    assert (end.status, end.outcome) == (2, "deadline"), end.text


# ---------------------------------------------------------------------------------------------------------------------
# Cores kept busy: last, since it slows down what starts after it

SLEEPS, SPINS = "import time; time.sleep(99)", "import re; re.match('(a+)+$', 'a' * 60 + 'b')"


@concurrent
@pytest.mark.parametrize(
    ("module", "function", "listeners", "stuck"),
    [
        ("hook", "judge_all", 1, SLEEPS),
        ("reader", "read_page", 2, SLEEPS),
        ("hook", "judge_all", 1, SPINS),
        ("reader", "read_page", 2, SPINS),
    ],
    ids=["sleeps", "threads-sleep", "spins", "threads-spin"],
)
def test_a_read_stuck_in_our_own_code_is_ended_by_g_minus_3(
    lab: Lab, module: str, function: str, listeners: int, stuck: str
) -> Case:
    """``spins``: in C, holding the interpreter's lock, so that no thread of Python runs."""
    urls = [word for _ in range(listeners) for word in ("--url", lab.listener(pages(IDLE)).url)]
    command = command_line_in(copy_package(lab.new_folder(), **{module: f"def {function}(*a, **k):\n    {stuck}"}))
    run = lab.hook("--engine", "vllm", *urls, command=command, spins=stuck is SPINS)
    yield
    # In a thread, only the kernel's CPU timer can end it: later by as much as others use the core.
    run.took(GRACE_S - 5, late_s=2 if listeners == 1 or stuck is SLEEPS else 30)


_SPIN = "import time\nend = time.monotonic() + 15\nwhile time.monotonic() < end: pass"


@concurrent
@pytest.mark.parametrize("behave", [pages(BUSY), silent], ids=["busy", "silent"])
def test_both_cores_busy(lab: Lab, behave: Behaviour) -> Case:
    listener = lab.listener(behave)
    spinning = [lab.other(sys.executable, "-I", "-c", _SPIN) for _ in range(len(os.sched_getaffinity(0)))]
    run: Run = lab.hook("--engine", "vllm", "--url", listener.url)
    yield
    end = run.end()
    for one in spinning:
        one.kill()
    run.keeps_the_timeline(listener, reads=5 if behave is not silent else None)
    assert (end.status, end.outcome) == (0, "deadline")
