"""What /proc tells, on this machine's own /proc."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from drainagent import procfs
from drainagent.watchdog import process_start_s


def test_process_start_is_the_start_and_never_earlier() -> None:
    code = "import time; from drainagent.watchdog import process_start_s; print(time.monotonic() - process_start_s())"
    before = time.monotonic()
    output = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True).stdout
    took = time.monotonic() - before
    assert 0 <= float(output) <= took + 0.011  # a clock tick


def test_process_start_of_this_process_does_not_move() -> None:
    assert process_start_s() == pytest.approx(process_start_s(), abs=0.005)


def test_an_engine_is_found_by_its_command_line(tmp_path: Path) -> None:
    """A process with vLLM's command line, which is all that discovery looks at."""
    (tmp_path / "serve").write_text("import time; print('up', flush=True); time.sleep(60)")
    argv = ["vllm", "serve", "m", "--port", "18123", "--enable-server-load-tracking"]
    with subprocess.Popen(argv, executable=sys.executable, cwd=tmp_path, stdout=subprocess.PIPE) as engine:
        assert engine.stdout is not None
        assert engine.stdout.readline() == b"up\n"
        found = {one.pid: one.command for one in procfs.engine_processes()}
        engine.kill()
    assert found[engine.pid].port == 18123
    assert found[engine.pid].load_tracking


def test_own_addresses() -> None:
    assert procfs.is_own_address("127.0.0.1")
    assert procfs.is_own_address("127.0.0.9")
    assert procfs.is_own_address("::1")
    assert not procfs.is_own_address("192.0.2.1")
    assert not procfs.is_own_address("2001:db8::1")


def test_tables_are_tables() -> None:
    tables = procfs.read_tables()
    assert tables is not None
    assert all(b"local_address" in table for table in tables)


def test_no_container_log_when_started_by_hand() -> None:
    assert procfs.container_log(8000) is None
