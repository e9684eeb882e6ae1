"""The hook's lines: what is said when, and that writing never blocks or fails."""

from __future__ import annotations

import json
import os
from pathlib import Path

from drainagent.page import GaugeReading
from drainagent.reasons import Outcome, Reason, Verdict
from drainagent.report import LineWriter, Report, write_termination_log
from drainagent.timeline import timeline
from drainagent.verdict import Judgement
from drainagent.window import Return


class Bench:
    """A report on a clock of its own."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.lines: list[str] = []
        self.termination: list[str] = []
        self.now_s = 0.0
        self.report = Report(
            self.lines.append,
            lambda: self.now_s,
            lambda: "2026-11-30T00:00:00.000Z",
            as_json=as_json,
            termination_log=self.termination.append,
        )


def busy(value: float) -> Judgement:
    gauge = GaugeReading("vllm:num_requests_running", value, ((),))
    return Judgement("u", Verdict.BUSY, Reason.GAUGES_ABOVE_ZERO, f"is {value:g}.", gauges=(gauge,))


def test_text_has_a_line_per_state_change_and_one_every_ten_seconds() -> None:
    bench = Bench()
    bench.report.start(timeline(60), "vLLM at u", ())
    for second in range(5, 31):
        bench.now_s = second
        bench.report.read(busy(second))
    assert [line.split()[1] for line in bench.lines] == ["0.0", "5.0", "15.0", "25.0"]


def test_json_has_a_line_per_read() -> None:
    bench = Bench(as_json=True)
    for second in range(5, 10):
        bench.now_s = second
        bench.report.read(busy(2))
    documents = [json.loads(line) for line in bench.lines]
    assert [document["elapsed_s"] for document in documents] == [5, 6, 7, 8, 9]
    assert documents[0]["event"] == "read"
    assert documents[0]["gauges"] == {"vllm:num_requests_running": 2}
    assert documents[0]["reason"] == "GaugesAboveZero"


def test_outcome_is_said_once_and_to_the_termination_log() -> None:
    bench = Bench(as_json=True)
    bench.now_s = 6.25
    bench.report.outcome(Return(Outcome.IDLE, "two idle reads"))
    bench.report.outcome(Return(Outcome.DEADLINE, "the watchdog"))
    (line,) = bench.lines
    assert json.loads(line)["outcome"] == "idle"
    assert json.loads(line)["waited_s"] == 6.25
    assert [json.loads(text)["outcome"] for text in bench.termination] == ["idle"]


def test_wrong_arguments_come_first() -> None:
    bench = Bench()
    bench.report.start(timeline(30), "vLLM at u", ("--grace 'x' is no number",))
    assert "--grace 'x' is no number" in bench.lines[0]
    assert "keeps serving for 5 s" in bench.lines[1]


def test_a_line_is_one_line_and_short_enough_for_a_pipe_to_take_whole() -> None:
    reader, writer = os.pipe()
    LineWriter(writer).write("a\nb\x1b[31m" + "x" * 10_000)
    data = os.read(reader, 65536)
    assert len(data) <= 4096
    assert data.count(b"\n") == 1
    assert b"\x1b" not in data
    os.close(reader)
    os.close(writer)


def test_a_full_pipe_loses_the_line_and_nothing_else() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"x" * 4096)
    except BlockingIOError:
        pass
    os.set_blocking(writer, True)
    LineWriter(writer, stderr_fd=writer).write("lost")
    os.close(reader)
    os.close(writer)


def test_a_closed_log_falls_back_to_stderr() -> None:
    dead_reader, dead = os.pipe()
    os.close(dead_reader)
    reader, stderr = os.pipe()
    LineWriter(dead, stderr).write("said")
    assert os.read(reader, 100) == b"said\n"
    for fd in (dead, reader, stderr):
        os.close(fd)


def test_no_descriptor_at_all() -> None:
    LineWriter(None, 987).write("nobody hears")


def test_termination_log_is_written_only_where_the_kubelet_made_it(tmp_path: Path) -> None:
    there, absent = tmp_path / "there", tmp_path / "absent"
    there.write_text("older and longer text")
    write_termination_log('{"outcome":"idle"}\n', str(there))
    write_termination_log("x", str(absent))
    assert there.read_text() == '{"outcome":"idle"}\n'
    assert not absent.exists()
