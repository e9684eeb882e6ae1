"""Logs: one JSON object a line, whatever is logged."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from operator_glue.runtime.logs import JsonFormatter, set_up

QUIET = ("httpx", "httpcore", "kubernetes_asyncio")


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """set_up is for a whole process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in QUIET}
    root.handlers[:] = []
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, value in levels.items():
        logging.getLogger(name).setLevel(value)


def lines(stream: io.TextIOWrapper) -> list[dict[str, Any]]:
    stream.flush()
    assert isinstance(stream.buffer, io.BytesIO)
    return [json.loads(line) for line in stream.buffer.getvalue().decode().splitlines()]


def logged(level: str = "debug") -> io.TextIOWrapper:
    """As standard error is."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    set_up(level, stream)
    return stream


def test_a_line() -> None:
    record = logging.LogRecord("a.b", logging.WARNING, "file", 1, "%s of %d", ("one", 2), None)
    record.created, record.msecs = 1_800_000_000.25, 250.0
    assert JsonFormatter().format(record) == (
        '{"time": "2027-01-15T08:00:00.250Z", "level": "warning", "logger": "a.b", "message": "one of 2"}'
    )


def test_what_a_line_is_about() -> None:
    stream = logged()
    logging.getLogger("x").info("of one", extra={"object": "models/llama"})
    logging.getLogger("x").error("of none")
    first, second = lines(stream)
    assert (first["object"], first["level"], first["message"]) == ("models/llama", "info", "of one")
    assert (second["level"], second["message"]) == ("error", "of none")
    assert "object" not in second


def test_an_exception_is_in_the_line() -> None:
    stream = logged()
    try:
        raise ValueError("with\na break")
    except ValueError:
        logging.getLogger("x").exception("it failed")
    (line,) = lines(stream)
    assert line["message"] == "it failed"
    assert "ValueError: with\na break" in line["exception"]
    assert "test_runtime_logs.py" in line["exception"]


@pytest.mark.parametrize(
    "text",
    ["two\nlines", 'quotes " and \\', "\x00\x1b[31m", "é 模型", "\u2028", "\x85", "\ud800 alone", "{}%s", ""],
    ids=ascii,
)
def test_whatever_it_says_it_is_one_line(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    stream = logged()
    logging.getLogger("x").info("%s", text)
    stream.flush()
    assert isinstance(stream.buffer, io.BytesIO)
    (line, nothing) = stream.buffer.getvalue().split(b"\n")
    assert nothing == b""
    assert json.loads(line)["message"] == text
    assert capsys.readouterr().err == ""


def test_levels() -> None:
    stream = logged("warning")
    logging.getLogger("x").info("not this")
    logging.getLogger("x").warning("this")
    assert [line["message"] for line in lines(stream)] == ["this"]
    with pytest.raises(ValueError, match="LOUD"):
        set_up("loud", stream)


@pytest.mark.parametrize("name", ["kubernetes_asyncio.client.rest", "httpx", "httpcore.connection"])
def test_the_clients_lines_which_have_bodies_are_left_out(name: str) -> None:
    stream = logged("debug")
    logging.getLogger(name).debug("response body: secret")
    logging.getLogger(name).info("GET https://…")
    logging.getLogger(name).warning("what is wrong")
    assert [line["message"] for line in lines(stream)] == ["what is wrong"]


def test_set_up_again_it_is_not_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    err = io.StringIO()
    monkeypatch.setattr(sys, "stderr", err)
    set_up("info")
    set_up("info")
    logging.getLogger("x").info("once")
    assert len(err.getvalue().splitlines()) == 1
