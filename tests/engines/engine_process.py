"""Starting and ending a real engine: start.sh's process group, always by its pid."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from load import Target

HERE = Path(__file__).resolve().parent
#: Longest wait for an engine that was asked to leave (SGLang takes up to 6 s idle) before its group is killed.
LEAVE_S = 20.0
START_S = 300


def engines_dir() -> Path:
    """Where setup.sh put the engines."""
    return Path(os.environ.get("DRAINAGENT_ENGINES") or Path.home() / ".cache/drainagent/engines")


def installed(engine: str) -> bool:
    return (engines_dir() / f"venv-{engine}" / ".ready").exists()


@dataclass(frozen=True)
class EngineSetup:
    """One way to start an engine: what several scenarios share."""

    name: str
    engine: str
    flags: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    tls: bool = False


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


class EngineProcess:
    """A started engine. ``started`` and ``exited`` are monotonic; ``used`` once a trial ran against it."""

    def __init__(self, setup: EngineSetup, run_dir: Path, every_cpu: set[int], certificate: tuple[Path, Path]) -> None:
        self.setup, self.port, self.used = setup, free_port(), False
        self.log = run_dir / f"{setup.name}.log"
        flags = setup.flags
        if setup.tls:
            flags += ("--ssl-certfile", str(certificate[0]), "--ssl-keyfile", str(certificate[1]))
        command = [str(HERE / "start.sh"), setup.engine, str(engines_dir()), setup.name, str(self.port), *flags]
        environment = {
            **os.environ,
            **setup.environment,
            "RUN_DIR": str(run_dir),
            "SCHEME": "https" if setup.tls else "http",
            "WAIT_S": str(START_S),
        }
        pid_file = run_dir / f"{setup.name}.pid"
        pid_file.unlink(missing_ok=True)
        began = time.monotonic()
        # The engine comes up on every CPU and is pinned by start.sh then. A child inherits this thread's mask.
        own_cpus = os.sched_getaffinity(0)
        os.sched_setaffinity(0, every_cpu)
        try:
            starter = subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, start_new_session=True, text=True
            )
        finally:
            os.sched_setaffinity(0, own_cpus)
        try:
            printed, _ = starter.communicate()
        except BaseException:
            starter.terminate()  # its trap ends the engine
            with contextlib.suppress(subprocess.TimeoutExpired):
                starter.wait(10)
            raise
        finally:
            self.pid = int(pid_file.read_text()) if pid_file.exists() else 0
            if starter.returncode != 0:
                self._kill_group()
        if starter.returncode != 0:
            raise RuntimeError(f"{setup.name} did not start: see {self.log}")
        assert int(printed) == self.pid
        self.start_took_s = time.monotonic() - began

    @property
    def target(self) -> Target:
        return Target(self.port, self.setup.tls)

    @property
    def url(self) -> str:
        return f"{'https' if self.setup.tls else 'http'}://127.0.0.1:{self.port}/metrics"

    def alive(self) -> bool:
        """Whether its main process still runs (a zombie, left to init, does not)."""
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        return state not in {"Z", "X"}

    def pages_served(self) -> int:
        """How many times its own access log says that its metrics page was asked for."""
        return self.log.read_bytes().count(b'"GET /metrics')

    def api_servers(self) -> list[int]:
        """vLLM's API server processes, in their order."""
        found = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                title = (entry / "cmdline").read_bytes().rstrip(b"\0 ")
                if title.startswith(b"VLLM::APIServer_") and os.getpgid(int(entry.name)) == self.pid:
                    found[title] = int(entry.name)
        return [found[title] for title in sorted(found)]

    def terminate(self) -> None:
        """SIGTERM to its main process alone, as the kubelet sends it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)

    def wait_gone(self, until: float) -> float | None:
        """When its main process was gone, or None when it still runs at ``until``."""
        while time.monotonic() < until:
            if not self.alive():
                return time.monotonic()
            time.sleep(0.02)
        return None

    def kill(self) -> None:
        """SIGKILL to all of it, as the kubelet at G."""
        self._kill_group()

    def stop(self) -> None:
        """End it, and whatever its main process left behind."""
        self.terminate()
        self.wait_gone(time.monotonic() + LEAVE_S)
        self._kill_group()

    def _kill_group(self) -> None:
        if self.pid > 1:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
