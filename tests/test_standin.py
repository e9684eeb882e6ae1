"""The stand-in engine at its boundary: its page, its lagging gauges, its streams, its misbehaviour, its end."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme
from prometheus_client.parser import text_string_to_metric_families

from drainagent.catalogue import PROCESS_START_TIME, SGLANG, VLLM, Engine
from drainagent.workstation import standin
from drainagent.workstation.standin import Settings, StandIn, settings_from_argv

RUNNING = {VLLM.option: VLLM.gauges[0].name, SGLANG.option: SGLANG.gauges[0].name}
FAST = {"tokens_per_second": 500.0, "prefill_tokens_per_second": 100000.0}


def engine(of: Engine, **settings: Any) -> StandIn:
    return StandIn(replace(Settings(engine=of), **{**FAST, **settings}))


def ask(port: int, path: str, body: object = None, host: str = "127.0.0.1") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(host, port, timeout=10)
    try:
        data = None if body is None else json.dumps(body)
        connection.request("GET" if body is None else "POST", path, data, {"connection": "close"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def samples(port: int) -> dict[str, float]:
    """The page's values by name, summed over label sets; raises on a page that does not parse."""
    status, page = ask(port, "/metrics")
    assert status == 200
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def active(port: int, endpoint: str) -> float:
    assert SGLANG.request_counter is not None
    match = re.search(rf'{SGLANG.request_counter}{{endpoint="{endpoint}".*}} (\S+)', ask(port, "/metrics")[1].decode())
    return float(match[1]) if match else 0.0


def until(true: Callable[[], bool], within_s: float = 5.0) -> float:
    """Waits for it to be so; gives how long that took."""
    began_s = time.monotonic()
    while not true():
        assert time.monotonic() - began_s < within_s, "it did not come to be in time"
        time.sleep(0.01)
    return time.monotonic() - began_s


class Client(threading.Thread):
    """One streaming request in a thread; what came of it is read after ``join``."""

    def __init__(self, port: int, tokens: int, prompt: int = 1, path: str = "/v1/completions") -> None:
        super().__init__(daemon=True)
        self.body: dict[str, Any] = {"prompt": [1] * prompt, "max_tokens": tokens, "stream": True}
        self.port, self.path = port, path
        self.events: list[dict[str, Any]] = []
        self.done = False
        self.failure: Exception | None = None
        self.start()

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("POST", self.path, json.dumps(self.body), {"connection": "close"})
            answer = connection.getresponse()
            while line := answer.readline():
                if line.startswith(b"data: {"):
                    self.events.append(json.loads(line[6:]))
                self.done |= line == b"data: [DONE]\n"
        except (OSError, http.client.HTTPException) as error:
            self.failure = error
        finally:
            connection.close()


@pytest.fixture(params=[VLLM, SGLANG], ids=["vllm", "sglang"])
def of(request: pytest.FixtureRequest) -> Engine:
    value = request.param
    assert isinstance(value, Engine)
    return value


# The page


def test_the_page_parses_and_carries_every_expected_gauge(of: Engine) -> None:
    with engine(of) as it:
        assert ask(it.port, "/v1/completions", {"prompt": "hello", "max_tokens": 3})[0] == 200
        found = samples(it.port)
        assert set(of.expected) <= set(found)
        assert found[of.prefix + "generation_tokens_total"] == 3
        assert (PROCESS_START_TIME in found) is (of is VLLM)
        # Neighbours with our gauge's name as a prefix are there to catch a careless reader.
        assert of is SGLANG or VLLM.gauges[1].name + "_by_reason" in found
        until(lambda: all(samples(it.port)[name] == 0 for name in of.expected))


def test_the_page_is_framed_with_its_length_and_has_the_engines_labels(of: Engine) -> None:
    with engine(of, model="m") as it:
        ask(it.port, "/v1/completions", {"prompt": "hello"})
        connection = http.client.HTTPConnection("127.0.0.1", it.port, timeout=10)
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        page = answer.read()
        connection.close()
        assert answer.headers["content-length"] == str(len(page))
        assert answer.headers["content-type"].startswith("text/plain; version=")
        assert page.endswith(b"\n")
        labels = (
            '{engine="0",model_name="m"}'
            if of is VLLM
            else '{engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="0"}'
        )
        assert f"\n{of.gauges[0].name}{labels} ".encode() in page
        assert f"# TYPE {of.gauges[0].name} gauge\n".encode() in page


def test_a_fresh_vllm_shows_zero_and_a_fresh_sglang_no_gauge() -> None:
    with engine(VLLM) as it:
        assert {samples(it.port)[name] for name in VLLM.expected} == {0}
    with engine(SGLANG) as it:
        assert not set(SGLANG.expected) & set(samples(it.port))


def test_without_its_flag_sglang_has_no_page_and_vllm_no_series() -> None:
    with engine(SGLANG, metrics=False) as it:
        assert ask(it.port, "/metrics")[0] == 404
    with engine(VLLM, log_stats=False) as it:
        assert ask(it.port, "/v1/completions", {"prompt": "hello"})[0] == 200
        found = samples(it.port)
        assert PROCESS_START_TIME in found
        assert not any(name.startswith("vllm:") for name in found)


# The lags


def test_vllm_reads_zero_for_the_whole_first_step_and_load_does_not() -> None:
    with engine(VLLM, prefill_tokens_per_second=100.0, load_tracking=True, max_num_batched_tokens=4096) as it:
        client = Client(it.port, tokens=200, prompt=150)
        until(lambda: b"1" in ask(it.port, "/load")[1])
        assert samples(it.port)[RUNNING["vllm"]] == 0
        assert not client.events
        took_s = until(lambda: samples(it.port)[RUNNING["vllm"]] == 1)
        assert took_s > 0.3
        client.join(10)
        assert len(client.events) == 200
        until(lambda: samples(it.port)[RUNNING["vllm"]] == 0)
        assert ask(it.port, "/load")[1] == b'{"server_load": 0}'


def test_load_answers_0_without_tracking() -> None:
    with engine(VLLM, prefill_tokens_per_second=100.0) as it:
        client = Client(it.port, tokens=1, prompt=30)
        assert ask(it.port, "/load") == (200, b'{"server_load": 0}')
        client.join(10)
        assert client.done


def test_sglang_reads_zero_through_prefill_and_forty_steps_and_its_counter_lags_2_s() -> None:
    with engine(SGLANG, prefill_tokens_per_second=100.0, tokens_per_second=40.0) as it:
        client = Client(it.port, tokens=60, prompt=60)
        until(lambda: active(it.port, "/v1/completions") == 1)
        assert active(it.port, "/metrics") == 1
        until(lambda: RUNNING["sglang"] in samples(it.port))
        # The prefill's report counted the batch before the request joined.
        assert samples(it.port)[RUNNING["sglang"]] == 0
        until(lambda: len(client.events) >= 20)
        assert samples(it.port)[RUNNING["sglang"]] == 0
        until(lambda: samples(it.port)[RUNNING["sglang"]] == 1)
        assert len(client.events) >= standin.DECODE_REPORT_STEPS
        client.join(10)
        assert client.done
        until(lambda: samples(it.port)[RUNNING["sglang"]] == 0)
        lag_s = until(lambda: active(it.port, "/v1/completions") == 0)
        assert 1.0 < lag_s < 4.0


def test_what_does_not_fit_the_batch_waits() -> None:
    with engine(VLLM, max_num_seqs=1, tokens_per_second=100.0) as it:
        clients = [Client(it.port, tokens=40) for _ in range(3)]
        until(lambda: samples(it.port)[VLLM.gauges[1].name] == 2)
        assert samples(it.port)[RUNNING["vllm"]] == 1
        for client in clients:
            client.join(10)
            assert len(client.events) == 40


def test_a_client_that_leaves_is_dropped(of: Engine) -> None:
    with engine(of, load_tracking=True, tokens_per_second=100.0) as it:
        sock = socket.create_connection(("127.0.0.1", it.port))
        body = json.dumps({"prompt": "hello", "max_tokens": 100000, "stream": True}).encode()
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        assert b"200" in sock.recv(100)
        until(lambda: samples(it.port).get(RUNNING[of.option]) == 1)
        sock.close()
        until(lambda: samples(it.port)[RUNNING[of.option]] == 0, within_s=2.0)
        assert of is SGLANG or ask(it.port, "/load")[1] == b'{"server_load": 0}'


# The routes


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/generate"])
def test_every_route_gives_the_tokens_that_were_asked_for(path: str, stream: bool) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": "hello", "max_tokens": 5},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5},
        "/generate": {"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 5}},
    }
    with engine(SGLANG) as it:
        status, answer = ask(it.port, path, {**bodies[path], "stream": stream})
        assert status == 200
        if stream:
            parts = answer.decode().split("\n\n")
            assert parts[-2:] == ["data: [DONE]", ""]
            values = [json.loads(part.removeprefix("data: ")) for part in parts[:-2]]
            assert len(values) == 5
            last = values[-1]
        else:
            last = json.loads(answer)
        text = json.dumps(last)
        assert '"length"' in text
        assert stream or text.count("token") >= 5


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/nowhere", None, 404),
        ("/v1/completions", None, 405),
        ("/v1/completions", ["no object"], 400),
        ("/v1/completions", {"max_tokens": 3}, 400),
        ("/v1/completions", {"prompt": "x", "max_tokens": 0}, 400),
        ("/v1/completions", {"prompt": "x", "max_tokens": "3"}, 400),
        ("/health", None, 200),
        ("/v1/models", None, 200),
    ],
)
def test_statuses(of: Engine, path: str, body: object, status: int) -> None:
    with engine(of) as it:
        assert ask(it.port, path, body)[0] == status
        assert ask(it.port, "/version")[0] == (200 if of is VLLM else 404)
        assert ask(it.port, "/model_info")[0] == (200 if of is SGLANG else 404)
        assert ask(it.port, "/health")[0] == 200


def talk(port: int, data: bytes) -> bytes:
    """Sends and reads until the other end closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
        sock.sendall(data)
        heard = b""
        while part := sock.recv(65536):
            heard += part
        return heard


@pytest.mark.parametrize(
    "head",
    [
        b"nonsense\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\nno colon\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: -3\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HEAD / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\n" + b"a: " + b"b" * 70000,
    ],
)
def test_what_is_no_http_is_refused_and_the_engine_lives(head: bytes) -> None:
    with engine(VLLM) as it:
        assert re.match(rb"HTTP/1.1 4\d\d ", talk(it.port, head))
        assert ask(it.port, "/health")[0] == 200


def test_chunked_bodies_expectations_and_pipelined_requests() -> None:
    body = json.dumps({"prompt": "x", "max_tokens": 2}).encode()
    with engine(VLLM) as it:
        heard = talk(
            it.port,
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\n"
            b"%x\r\n%b\r\n0\r\n\r\nGET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n" % (len(body), body),
        )
        assert heard.startswith(b"HTTP/1.1 100 ")
        assert heard.count(b"HTTP/1.1 200 ") == 2


def test_an_idle_connection_is_closed_after_the_keep_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    assert standin.KEEP_ALIVE_S == 5
    monkeypatch.setattr(standin, "KEEP_ALIVE_S", 0.3)
    with engine(VLLM) as it:
        began_s = time.monotonic()
        assert talk(it.port, b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").startswith(b"HTTP/1.1 200")
        assert 0.25 < time.monotonic() - began_s < 2


def test_tls_and_ipv6(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("::1")
    certificate.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "both.pem"))
    both = str(tmp_path / "both.pem")
    with engine(VLLM, host="::1", ssl_certfile=both, ssl_keyfile=both) as it:
        assert it.url.startswith("https://[::1]:")
        context = ssl.create_default_context()
        authority.configure_trust(context)
        connection = http.client.HTTPSConnection("::1", it.port, timeout=10, context=context)
        connection.request("GET", "/metrics")
        assert connection.getresponse().read().count(VLLM.gauges[0].name.encode()) == 3
        connection.close()


# Misbehaviour


def test_a_reset_page_is_a_tcp_reset(of: Engine) -> None:
    with engine(of, reset_metrics=True) as it:
        with pytest.raises(ConnectionResetError):
            ask(it.port, "/metrics")
        assert ask(it.port, "/health")[0] == 200


def test_slow_answers_are_slow() -> None:
    with engine(VLLM, slow_metrics_s=0.3, slow_health_s=0.3) as it:
        for path in ("/metrics", "/health"):
            began_s = time.monotonic()
            assert ask(it.port, path)[0] == 200
            assert time.monotonic() - began_s >= 0.3


def test_gauges_can_be_absent_stuck_or_late(of: Engine) -> None:
    with engine(of, no_gauges=True) as it:
        ask(it.port, "/v1/completions", {"prompt": "x"})
        assert not set(of.expected) & set(samples(it.port))
    with engine(of, stuck_gauge=7.0) as it:
        assert samples(it.port)[RUNNING[of.option]] == 7
        ask(it.port, "/v1/completions", {"prompt": "x"})
        assert samples(it.port)[RUNNING[of.option]] == 7
    with engine(of, gauge_lag_s=0.5, tokens_per_second=200.0) as it:
        client = Client(it.port, tokens=150)
        client.join(10)
        # What the page shows now is what was so half a second ago, and it passes.
        until(lambda: samples(it.port).get(RUNNING[of.option]) == 1)
        until(lambda: samples(it.port)[RUNNING[of.option]] == 0, within_s=2.0)


# The process


class Process:
    def __init__(self, *arguments: str) -> None:
        argv = [sys.executable, "-m", "drainagent.workstation.standin", "--host", "127.0.0.1", "--port", "0"]
        self.process = subprocess.Popen(
            [*argv, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ}
        )
        assert self.process.stdout is not None
        match = re.search(r"listening on http://127\.0\.0\.1:(\d+)", self.process.stdout.readline())
        assert match, self.process.stderr.read() if self.process.stderr else ""
        self.port = int(match[1])

    def terminate(self) -> float:
        self.process.send_signal(signal.SIGTERM)
        return time.monotonic()

    def refuses(self) -> bool:
        try:
            ask(self.port, "/health")
        except ConnectionRefusedError:
            return True
        except (OSError, http.client.HTTPException):
            return False
        return False


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def begin(*arguments: str) -> Process:
        started.append(Process(*arguments))
        return started[-1]

    yield begin
    for one in started:
        one.process.kill()
        one.process.communicate()


def test_vllm_at_sigterm_closes_the_listener_and_aborts_every_stream(start: Callable[..., Process]) -> None:
    it = start("--engine", "vllm")
    clients = [Client(it.port, tokens=10000) for _ in range(4)]
    until(lambda: all(client.events for client in clients))
    began_s = it.terminate()
    until(it.refuses, within_s=1.0)
    assert it.process.wait(5) == 0
    assert 0.3 < time.monotonic() - began_s < 4
    for client in clients:
        client.join(5)
    # Half of them hear of it in a stream that ends well by its status; the others are cut.
    told = [client for client in clients if any("error" in event for event in client.events)]
    assert len(told) == 2
    assert all(client.done and client.failure is None for client in told)
    assert not any(client.done for client in clients if client not in told)


def test_an_idle_vllm_exits_at_once(start: Callable[..., Process]) -> None:
    it = start("--engine", "vllm")
    began_s = it.terminate()
    assert it.process.wait(5) == 0
    assert time.monotonic() - began_s < 4


def test_vllm_with_a_shutdown_timeout_finishes_what_runs(start: Callable[..., Process]) -> None:
    it = start("--engine", "vllm", "--shutdown-timeout", "20", "--exit-after", "0.5")
    early = Client(it.port, tokens=100)
    until(lambda: len(early.events) > 0)
    it.terminate()
    late = Client(it.port, tokens=3)
    until(lambda: late.done)
    assert len(late.events) == 3
    early.join(10)
    assert early.done
    assert len(early.events) == 100
    assert it.process.wait(5) == 0


def test_a_request_long_after_sigterm_gets_an_empty_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standin, "VLLM_LATE_ANSWERED_S", -1.0)
    with engine(VLLM, shutdown_timeout_s=20.0) as it:
        early = Client(it.port, tokens=200)
        until(lambda: len(early.events) > 0)
        it.terminate()
        until(lambda: ask(it.port, "/v1/completions", {"prompt": "x", "stream": True})[1] == b"data: [DONE]\n\n")
        assert ask(it.port, "/v1/completions", {"prompt": "x"})[0] == 500


def test_sglang_at_sigterm_answers_503_and_drains_what_runs_and_comes(start: Callable[..., Process]) -> None:
    it = start("--engine", "sglang", "--enable-metrics", "--drain-check", "0.5")
    early = Client(it.port, tokens=50)
    until(lambda: len(early.events) > 0)
    assert ask(it.port, "/health")[0] == 200
    it.terminate()
    until(lambda: ask(it.port, "/health")[0] == 503)
    late = Client(it.port, tokens=5)
    for client in (early, late):
        client.join(10)
        assert client.done
    assert it.process.wait(5) == 0


def test_a_port_in_use_is_one_sentence(start: Callable[..., Process]) -> None:
    it = start("--engine", "vllm")
    argv = [sys.executable, "-m", "drainagent.workstation.standin", "--engine=vllm", "--host=127.0.0.1"]
    ran = subprocess.run([*argv, f"--port={it.port}"], capture_output=True, text=True, timeout=20, check=False)
    assert ran.returncode == 1
    assert f"cannot listen on 127.0.0.1 port {it.port}" in ran.stderr
    assert "Traceback" not in ran.stderr


# The command line


def test_a_real_engines_command_line_is_taken_and_what_is_unknown_is_named() -> None:
    settings, unknown = settings_from_argv(
        ["vllm", "serve", "some/model", "--tensor-parallel-size", "2", "--max_num_seqs=4", "--enable-prefix-caching"]
    )
    assert settings.engine is VLLM
    assert (settings.host, settings.port, settings.max_num_seqs) == ("0.0.0.0", 8000, 4)
    assert unknown == ["vllm", "serve", "some/model", "--tensor-parallel-size", "2", "--enable-prefix-caching"]
    settings, unknown = settings_from_argv(
        ["python3", "-m", "sglang.launch_server", "--model-path", "m", "--enable-metrics", "--tp", "8"]
    )
    assert settings.engine is SGLANG
    assert (settings.host, settings.port, settings.model, settings.metrics) == ("127.0.0.1", 30000, "m", True)
    assert "--tp" in unknown


@pytest.mark.parametrize(
    "argv", [[], ["--engine", "other"], ["--engine=vllm", "--slow-health=nan"], ["--engine=vllm", "--max-num-seqs=0"]]
)
def test_a_wrong_command_line_ends_with_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        settings_from_argv(argv)
    assert end.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_a_port_in_use_raises_where_it_is_started() -> None:
    with engine(VLLM) as it, pytest.raises(OSError, match="address already in use"):
        engine(VLLM, port=it.port).start()
