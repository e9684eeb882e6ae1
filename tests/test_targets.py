"""Which listeners are read: from command lines, from usual ports, and what the user overrides."""

from __future__ import annotations

from dataclasses import dataclass

from drainagent.catalogue import SGLANG, VLLM
from drainagent.engine_argv import EngineCommand, read_command
from drainagent.targets import Overrides, discover, targets_for
from drainagent.url import ListenerUrl, parse_url

HEADING = b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def listening(*ports: int) -> list[bytes]:
    rows = b"".join(
        b"   0: 00000000:%04X 00000000:0000 0A 00000000:00000000 00:00000000 0 0 7\n" % port for port in ports
    )
    return [HEADING + rows]


@dataclass(frozen=True)
class Process:
    pid: int
    command: EngineCommand


def process(line: str, pid: int = 7) -> Process:
    command = read_command(line.split())
    assert isinstance(command, EngineCommand)
    return Process(pid, command)


def test_vllm_by_its_command_line() -> None:
    found = discover(None, [process("vllm serve m --port 9000 --enable-server-load-tracking")], [], Overrides())
    (target,) = found.targets
    assert (str(target.url), target.engine, target.load_tracking) == ("http://127.0.0.1:9000/metrics", VLLM, True)
    assert target.engines_expected == 1
    assert found.conclusions == ("process 7 is vLLM, listening on port 9000",)


def test_load_counts_only_with_one_api_server() -> None:
    line = "vllm serve m --enable-server-load-tracking --data-parallel-size 2"
    assert not discover(None, [process(line)], [], Overrides()).targets[0].load_tracking
    assert discover(None, [process(line)], [], Overrides(api_servers=1)).targets[0].load_tracking
    assert discover(None, [process(line + " --api-server-count 1")], [], Overrides()).targets[0].load_tracking


def test_load_without_the_flag_is_not_asked() -> None:
    assert not discover(None, [process("vllm serve m")], [], Overrides()).targets[0].load_tracking
    assert discover(None, [process("vllm serve m")], [], Overrides(load_tracking=True)).targets[0].load_tracking


def test_load_override_without_a_known_number_of_servers_is_not_enough() -> None:
    (target,) = targets_for([parse_url("http://127.0.0.1:8000")], VLLM, [], Overrides(load_tracking=True))
    assert not target.load_tracking
    (target,) = targets_for([parse_url("http://127.0.0.1:8000")], VLLM, [], Overrides(True, 1))
    assert target.load_tracking


def test_tls_and_bound_address() -> None:
    line = "python3 -m sglang.launch_server --model m --host 10.1.2.3 --port 30001 --ssl-certfile c --ssl-keyfile k"
    (target,) = discover(None, [process(line)], [], Overrides()).targets
    assert (str(target.url), target.engine) == ("https://10.1.2.3:30001/metrics", SGLANG)


def test_usual_ports_when_no_process_is_seen() -> None:
    found = discover(None, [], listening(30000, 22), Overrides())
    assert [target.url for target in found.targets] == [ListenerUrl("http", "127.0.0.1", 30000)]
    assert "port 30000" in found.conclusions[0]
    assert found.targets[0].engine is None


def test_nothing_found() -> None:
    assert discover(None, [], listening(22), Overrides()).targets == ()


def test_another_engine_than_the_one_asked_for_is_passed_over() -> None:
    assert discover(SGLANG, [process("vllm serve m")], [], Overrides()).targets == ()


def test_unix_socket_is_named() -> None:
    found = discover(None, [process("vllm serve m --uds /tmp/s")], [], Overrides())
    assert found.targets == ()
    assert "/tmp/s" in found.conclusions[0]


def test_given_url_takes_the_facts_of_the_process_on_its_port() -> None:
    processes = [process("vllm serve m --port 8001", 8), process("vllm serve m --enable-server-load-tracking", 7)]
    (target,) = targets_for([parse_url("http://127.0.0.1:8000")], None, processes, Overrides())
    assert target.engine is VLLM
    assert target.load_tracking
