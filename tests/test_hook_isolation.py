"""The real hook process in containers of every kind: whatever user, mounts, environment and log it is given."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hookproc import (
    BUSY,
    GRACE_S,
    HOOK,
    IDLE,
    Case,
    Lab,
    Run,
    as_user,
    command_line_in,
    concurrent,
    copy_package,
    in_mounts,
    json_lines,
    need,
    need_root,
    pages,
    program,
    reachable,
    server_tls,
    started_cases,  # noqa: F401 - the fixture behind ``concurrent``
)

#: The console script that pip installs: nothing isolates it but our own code.
SCRIPT = (str(Path(sys.executable).parent / "drainagent"), "hook")
#: ``python -m`` from wherever one stands, without -I.
MODULE = (sys.executable, "-m", "drainagent", "hook")


def is_idle(run: Run, *, status: int = 0) -> None:
    end = run.end()
    assert (end.status, end.outcome) == (status, "idle"), end.text
    run.took(6)


# ---------------------------------------------------------------------------------------------------------------------
# Users and mounts

READ_ONLY = "for at in / /tmp /dev/shm /run /dev; do mount -o remount,ro,bind $at 2>/dev/null || true; done"


@concurrent
def test_a_read_only_root(lab: Lab) -> Case:
    listener = lab.listener(pages(IDLE))
    probe = "if touch /tmp/drainagent-probe 2>/dev/null; then rm /tmp/drainagent-probe; exit 99; fi"
    run = lab.hook("--engine", "vllm", "--url", listener.url, through=in_mounts(f"{READ_ONLY}\n{probe}"))
    yield
    is_idle(run)


@concurrent
def test_another_user(lab: Lab) -> Case:
    listener = lab.listener(pages(IDLE))
    through = [*in_mounts(reachable()), *as_user()]
    run = lab.hook("--engine", "vllm", "--url", listener.url, through=through)
    yield
    is_idle(run)


@concurrent
@pytest.mark.parametrize("hidepid", ["1", "2", "4"])
def test_another_user_who_sees_no_other_process(lab: Lab, hidepid: str) -> Case:
    listener = lab.listener(pages(BUSY, IDLE))
    client = listener.client()
    mounts = f"{reachable()}\nmount -t proc -o hidepid={hidepid} proc /proc\n{READ_ONLY}"
    run = lab.hook("--engine", "vllm", "--url", listener.url, through=[*in_mounts(mounts), *as_user()])
    run.call_at(7.5, client.close)
    yield
    end = run.end()
    assert (end.status, end.outcome) == (0, "idle"), end.text
    reasons = [line["reason"] for line in end.reads]  # how many of the middle ones is the machine's business
    assert (reasons[0], {*reasons[1:-2]}, reasons[-2:]) == ("GaugesAboveZero", {"ConnectionsOpen"}, [None, None])


@concurrent
def test_no_proc_at_all(lab: Lab) -> Case:
    """Neither its start nor the socket table can be read: it is busy to the deadline, and nothing is read early."""
    listener = lab.listener(pages(IDLE))
    run = lab.hook("--engine", "vllm", "--url", listener.url, through=in_mounts("mount -t tmpfs tmpfs /proc"))
    yield
    end = run.end()
    assert all(at_s >= 5 for at_s in run.arrivals_s(listener))
    run.took(GRACE_S - 5, late_s=2)
    assert (end.status, end.outcome) == (0, "deadline"), end.text
    assert {line["reason"] for line in end.reads} == {"InFlightUnreadable"}


@concurrent
def test_a_deleted_working_directory(lab: Lab) -> Case:
    listener = lab.listener(pages(IDLE))
    gone = lab.new_folder() / "gone"
    through = ["/bin/sh", "-ec", f'mkdir {gone}; cd {gone}; rmdir {gone}; exec "$@"', "sh"]
    run = lab.hook("--engine", "vllm", "--url", listener.url, through=through)
    yield
    is_idle(run)


@concurrent
@pytest.mark.parametrize("command", [SCRIPT, MODULE], ids=["script", "module"])
def test_a_deleted_working_directory_without_isolation(lab: Lab, command: tuple[str, ...]) -> Case:
    listener = lab.listener(pages(IDLE))
    gone = lab.new_folder() / "gone"
    through = ["/bin/sh", "-ec", f'mkdir {gone}; cd {gone}; rmdir {gone}; exec "$@"', "sh"]
    run = lab.hook("--engine", "vllm", "--url", listener.url, command=command, through=through)
    yield
    is_idle(run)


# ---------------------------------------------------------------------------------------------------------------------
# Environment and import path

STRAYS = ("click", "socket", "anyio", "h11", "ssl", "select", "json", "threading", "dataclasses", "certifi")


def strays(lab: Lab) -> tuple[Path, Path]:
    """A folder with modules of the names that we import, and the file that any of them would write when imported."""
    folder = lab.new_folder()
    marker = folder / "imported"
    for name in STRAYS:
        (folder / f"{name}.py").write_text(f"open({str(marker)!r}, 'a').write({name!r} + ' ')\nraise ImportError\n")
    return folder, marker


@concurrent
@pytest.mark.parametrize("command", [HOOK, SCRIPT], ids=["isolated", "script"])
@pytest.mark.parametrize("extra", ["", "::/nonexistent"], ids=["alone", "with-empty"])
def test_stray_modules_where_it_stands(lab: Lab, command: tuple[str, ...], extra: str) -> Case:
    folder, marker = strays(lab)
    listener = lab.listener(pages(IDLE), tls=server_tls())
    env = {"PYTHONPATH": f"{folder}{extra}"} if command == HOOK else {}
    run = lab.hook(
        "--engine", "vllm", "--url", listener.url, command=command, cwd=str(folder), env={"HOME": str(folder), **env}
    )
    yield
    is_idle(run)
    assert not marker.exists(), marker.read_text()


#: What Python itself imports before any code of ours runs, or the console script's own first lines do, cannot be
#: helped without -I; these are imported by us alone.
OURS = ("click", "socket", "anyio", "h11", "ssl", "select", "certifi")


@concurrent
@pytest.mark.parametrize("command", [SCRIPT, MODULE], ids=["script", "module"])
@pytest.mark.parametrize("extra", ["", "::/nonexistent"], ids=["alone", "with-empty"])
def test_stray_modules_on_pythonpath_without_isolation(lab: Lab, command: tuple[str, ...], extra: str) -> Case:
    folder, marker = strays(lab)
    for name in set(STRAYS) - set(OURS):
        (folder / f"{name}.py").unlink()
    listener = lab.listener(pages(IDLE), tls=server_tls())
    env = {"PYTHONPATH": f"{folder}{extra}"}
    run = lab.hook("--engine", "vllm", "--url", listener.url, command=command, cwd=str(folder), env=env)
    yield
    is_idle(run)
    assert not marker.exists(), marker.read_text()


@concurrent
def test_stray_modules_in_the_working_directory_of_a_module_run(lab: Lab) -> Case:
    folder, marker = strays(lab)
    listener = lab.listener(pages(IDLE), tls=server_tls())
    for name in set(STRAYS) - set(OURS):
        (folder / f"{name}.py").unlink()
    run = lab.hook("--engine", "vllm", "--url", listener.url, command=MODULE, cwd=str(folder))
    yield
    is_idle(run)
    assert not marker.exists(), marker.read_text()


HOSTILE = {
    "HTTP_PROXY": "http://127.0.0.1:9",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "ALL_PROXY": "socks5://127.0.0.1:9",
    "http_proxy": "garbage",
    "https_proxy": "garbage://",
    "all_proxy": "socks5h://[::1",
    "NO_PROXY": "[::1]",
    "no_proxy": "[",
    "SSL_CERT_FILE": "/nonexistent",
    "SSL_CERT_DIR": "/nonexistent",
    "REQUESTS_CA_BUNDLE": "/nonexistent",
    "CURL_CA_BUNDLE": "/nonexistent",
    "OPENSSL_MODULES": "/nonexistent",
    "OPENSSL_ENGINES": "/nonexistent",
    "OPENSSL_ia32cap": "~0",
    "PYTHONHTTPSVERIFY": "1",
    "PYTHONWARNINGS": "error",
    "PYTHONSTARTUP": "/nonexistent",
    "PYTHONHOME": "/nonexistent",
    "PYTHONINSPECT": "1",
    "PYTHONDEVMODE": "1",
    "HOME": "/nonexistent",
    "TMPDIR": "/nonexistent",
    "LANG": "xx_XX.UTF-7",
    "LC_ALL": "tr_TR",
    "TZ": ":/etc/passwd",
    "RES_OPTIONS": "timeout:60 attempts:9",
    "COLUMNS": "-1",
    "NO_COLOR": "1",
}


@concurrent
@pytest.mark.parametrize("command", [HOOK, SCRIPT], ids=["isolated", "script"])
def test_hostile_proxy_and_tls_variables(lab: Lab, command: tuple[str, ...]) -> Case:
    folder = lab.new_folder()
    conf, keys = folder / "openssl.cnf", folder / "keys"
    conf.write_text(
        "openssl_conf = x\n[x]\nssl_conf = y\n[y]\nsystem_default = z\n[z]\nMinProtocol = no\nCipherString = NONE\n"
    )
    listener = lab.listener(pages(BUSY, IDLE), tls=server_tls())
    env = {**HOSTILE, "OPENSSL_CONF": str(conf), "OPENSSL_CONF_INCLUDE": str(folder), "SSLKEYLOGFILE": str(keys)}
    if command == SCRIPT:  # what Python reads before any code runs, only -I can keep away
        env = {name: value for name, value in env.items() if not name.startswith("PYTHON")}
    run = lab.hook("--engine", "vllm", "--url", listener.url, command=command, env=env)
    yield
    end = run.end()
    run.keeps_the_timeline(listener, reads=3)
    assert (end.status, end.outcome) == (0, "idle"), end.text
    assert not keys.exists()


@concurrent
@pytest.mark.parametrize("instruction", ["bash_source", "bash_complete"])
@pytest.mark.parametrize("command", [HOOK, SCRIPT], ids=["isolated", "script"])
def test_the_variable_of_shell_completion_ends_no_hook(lab: Lab, command: tuple[str, ...], instruction: str) -> Case:
    listener = lab.listener(pages(IDLE))
    run = lab.hook(
        "--engine", "vllm", "--url", listener.url, command=command, env={"_DRAINAGENT_COMPLETE": instruction}
    )
    yield
    is_idle(run)


# ---------------------------------------------------------------------------------------------------------------------
# Logs that take nothing


@contextlib.contextmanager
def full_pipe(*, blocking: bool = True) -> Iterator[int]:
    """The write end of a pipe that nobody reads and that takes not a byte more."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(writer, b"x" * 4096):
            pass
    os.set_blocking(writer, blocking)
    try:
        yield writer
    finally:
        os.close(reader)
        os.close(writer)


@concurrent
@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "nonblocking"])
@pytest.mark.parametrize("busy", [True, False], ids=["busy", "idle"])
def test_a_full_log_pipe(lab: Lab, blocking: bool, busy: bool) -> Case:
    listener = lab.listener(pages(BUSY if busy else IDLE))
    with full_pipe(blocking=blocking) as log:
        run = lab.hook("--engine", "vllm", "--url", listener.url, "--oops", stderr=log)
        yield
        end = run.end()
    run.keeps_the_timeline(listener, reads=5 if busy else 2)
    assert end.status == 2


@concurrent
def test_a_full_log_pipe_and_a_failure_of_its_own(lab: Lab) -> Case:
    command = command_line_in(copy_package(lab.new_folder(), hook="raise RuntimeError('broken')"))
    with full_pipe() as log:
        run = lab.hook("--engine", "vllm", command=command, stderr=log)
        yield
        run.took(10)


@concurrent
def test_a_full_log_pipe_at_the_watchdogs_end(lab: Lab) -> Case:
    """Its last read never ends, and its last words find no room."""
    command = command_line_in(copy_package(lab.new_folder(), hook="import time\ndef judge(*a, **k): time.sleep(99)"))
    listener = lab.listener(pages(IDLE))
    with full_pipe() as log:
        run = lab.hook("--engine", "vllm", "--url", listener.url, command=command, stderr=log)
        yield
        end = run.end()
    run.keeps_the_timeline(listener)
    assert end.status == 0


@concurrent
def test_a_log_that_nobody_holds_any_more(lab: Lab) -> Case:
    listener = lab.listener(pages(BUSY))
    reader, writer = os.pipe()
    os.close(reader)
    run = lab.hook("--engine", "vllm", "--url", listener.url, stderr=writer)
    os.close(writer)
    yield
    run.keeps_the_timeline(listener, reads=5)
    assert run.end().status == 0


@concurrent
@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-", "<&- >&-"])
@pytest.mark.parametrize("wrong", [True, False], ids=["wrong", "right"])
def test_closed_standard_streams(lab: Lab, closed: str, wrong: bool) -> Case:
    listener = lab.listener(pages(BUSY, IDLE))
    through = ["/bin/sh", "-c", f'exec "$@" {closed}', "sh"]
    run = lab.hook("--engine", "vllm", "--url", listener.url, *(["--oops"] if wrong else []), through=through)
    yield
    end = run.end()
    run.keeps_the_timeline(listener, reads=3)
    assert end.status == (2 if wrong else 0)


@concurrent
def test_a_disk_without_room_for_the_log(lab: Lab) -> Case:
    listener = lab.listener(pages(IDLE))
    with open("/dev/full", "wb") as full:
        run = lab.hook("--engine", "vllm", "--url", listener.url, stderr=full.fileno())
    yield
    run.keeps_the_timeline(listener, reads=2)
    assert run.end().status == 0


# ---------------------------------------------------------------------------------------------------------------------
# Writes nothing, starts nothing, speaks to nobody else


@concurrent
def test_it_writes_no_file(lab: Lab) -> Case:
    """As root, in a folder of its own for everything that is writable, and a package without cached bytecode."""
    folder = copy_package(lab.new_folder())
    listener = lab.listener(pages(IDLE), tls=server_tls())
    command = command_line_in(folder)  # with -B, as a rendered hook starts
    env = {"HOME": str(folder), "TMPDIR": str(folder), "XDG_CACHE_HOME": str(folder)}
    before = sorted(folder.rglob("*"))
    run = lab.hook("--engine", "vllm", "--url", listener.url, command=command, env=env, cwd=str(folder))
    yield
    is_idle(run)
    assert sorted(folder.rglob("*")) == before


TRACED = "openat,open,creat,connect,bind,clone,clone3,fork,vfork,execve,mkdir,mkdirat,unlink,unlinkat,rename,renameat2"


@concurrent
@pytest.mark.parametrize("https", [True, False], ids=["https", "http"])
def test_its_system_calls(lab: Lab, https: bool) -> Case:
    strace = program("strace")
    need(strace, "-o", "/dev/null", program("true"))
    trace = lab.new_folder() / "trace"
    listener = lab.listener(pages(BUSY, IDLE), tls=server_tls() if https else None)
    client = listener.client()
    through = [strace, "-f", "-qq", "-o", str(trace), "-e", f"trace={TRACED}"]
    command = (HOOK[0], "-B", *HOOK[1:])
    run = lab.hook("--engine", "vllm", "--url", listener.url, "--termination-log", through=through, command=command)
    run.call_at(6.5, client.close)
    yield
    end = run.end()
    assert (end.status, end.outcome) == (0, "idle"), end.text
    calls = [line.split(maxsplit=1)[1] for line in trace.read_text().splitlines()]
    calls = [call for call in calls if not call.startswith(("+++", "---", "<..."))]
    started = [call for call in calls if call.startswith(("execve", "fork", "vfork", "clone"))]
    assert started.pop(0).startswith("execve")
    assert all("CLONE_THREAD" in call for call in started), started
    opened = [call for call in calls if re.match(r"(openat|open|creat)\(", call)]
    written = [call for call in opened if re.search(r"O_WRONLY|O_RDWR|O_CREAT|creat\(", call)]
    # stderr's own file opened anew (so that writing cannot block), and the kubelet's file; neither is made.
    ours = ('"/dev/termination-log"', '"/proc/self/fd/2"')
    assert all(any(name in call for name in ours) and "O_CREAT" not in call for call in written), written
    assert not [call for call in calls if re.match(r"(mkdir|unlink|rename)", call)]
    # (The interpreter itself asks for the user's home through the C library's cache, where HOME is not set.)
    connected = [call for call in calls if call.startswith("connect(") and "/nscd/" not in call]
    assert connected
    assert all("127.0.0.1" in call and f"htons({listener.port})" in call for call in connected), connected


@concurrent
def test_a_termination_log_that_exists_gets_one_line(lab: Lab) -> Case:
    listener = lab.listener(pages(BUSY))
    message = lab.new_folder() / "message"
    message.write_text("what was there before " * 500)
    run = lab.hook(
        "--engine", "vllm", "--url", listener.url, "--termination-log", through=in_mounts(device_folder(message))
    )
    yield
    end = run.end()
    assert (end.status, end.outcome) == (0, "deadline")
    text = message.read_text()
    assert text.count("\n") == 1
    assert text.endswith("\n")
    assert len(text) <= 4096
    line = json.loads(text)
    moment = {"time": "", "elapsed_s": 0}
    assert {**line, **moment} == {**end.last, **moment}
    assert line["outcome"] == "deadline"
    assert line["gauges"] == {"vllm:num_requests_running": 3, "vllm:num_requests_waiting": 0}


@concurrent
def test_the_termination_log_of_a_text_hook_is_json_too(lab: Lab) -> Case:
    listener = lab.listener(pages(IDLE))
    message = lab.new_folder() / "message"
    message.touch()
    through = in_mounts(device_folder(message))
    run = lab.hook("--url", listener.url, "--termination-log", through=through, log_format=None)
    yield
    assert run.end().status == 0
    assert json.loads(message.read_text())["outcome"] == "idle"


@concurrent
def test_without_the_option_the_termination_log_is_left_alone(lab: Lab) -> Case:
    listener = lab.listener(pages(IDLE))
    message = lab.new_folder() / "message"
    message.write_text("as it was")
    run = lab.hook("--engine", "vllm", "--url", listener.url, through=in_mounts(device_folder(message)))
    yield
    is_idle(run)
    assert message.read_text() == "as it was"


@concurrent
def test_a_termination_log_that_does_not_exist_is_not_made(lab: Lab) -> Case:
    listener = lab.listener(pages(IDLE))
    listing = lab.new_folder() / "listing"
    through = in_mounts(f'{device_folder(None)}\nset +e\n"$@"\nstatus=$?\nls -A /dev > {listing}\nexit $status')
    run = lab.hook("--engine", "vllm", "--url", listener.url, "--termination-log", through=through)
    yield
    is_idle(run)
    assert sorted(listing.read_text().split()) == ["null", "urandom"]


def device_folder(message: Path | None) -> str:
    """Mounts: a /dev of a container, with a termination message file or without."""
    lines = [
        "dev=$(mktemp -d)",
        "mount -t tmpfs tmpfs $dev",
        "for device in null urandom; do touch $dev/$device; mount --bind /dev/$device $dev/$device; done",
    ]
    if message is not None:
        lines += ["touch $dev/termination-log", f"mount --bind '{message}' $dev/termination-log"]
    return "\n".join([*lines, "mount --rbind $dev /dev", "umount -l $dev", "rmdir $dev"])


# ---------------------------------------------------------------------------------------------------------------------
# The container's own log


def container(lab: Lab, log: Path, script: str, **options: object) -> int:
    """A process namespace whose PID 1 runs ``script``, its stdout in ``log``; PID 1's id out here."""
    need_root()
    unshare = program("unshare")
    need(unshare, "-p", "-f", "--mount-proc", "true")
    program("nsenter")
    with log.open("wb") as file:
        outer = lab.other(
            unshare, "-p", "-f", "--mount-proc", "--kill-child", "/bin/sh", "-ec", script,
            stdout=file, stderr=subprocess.DEVNULL, env={}, **options,
        )  # fmt: skip
    return child_of(outer.pid)


def child_of(pid: int) -> int:
    """The first child of a process, waited for."""
    until_s = time.monotonic() + 10
    while time.monotonic() < until_s:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if children:
            return int(children[0])
        time.sleep(0.01)
    raise TimeoutError(f"process {pid} starts no child")


def entered(pid: int) -> list[str]:
    """As a kubelet's exec: into the namespaces of a process, with no parent there."""
    return [program("nsenter"), "-t", str(pid), "-p", "-m", "--"]


@concurrent
@pytest.mark.parametrize("user", [False, True], ids=["root", "another-user"])
def test_the_lines_are_in_the_containers_log(lab: Lab, user: bool) -> Case:
    listener = lab.listener(pages(BUSY, IDLE))
    log = lab.new_folder() / "log"
    log.touch()
    run_as = as_user() if user else []
    setup = reachable() if user else "true"
    if user:
        os.chown(log, 12345, 12345)
    first = container(lab, log, f"{setup}\necho engine line\nexec {' '.join([*run_as, '/bin/sleep'])} 60")
    wait_for(lambda: b"engine line" in log.read_bytes())
    time.sleep(0.1)
    run = lab.hook("--engine", "vllm", "--url", listener.url, "--oops", through=[*entered(first), *run_as])
    yield
    end = run.end()
    assert end.status == 2
    lines = json_lines(log.read_text())
    assert log.read_text().startswith("engine line\n")
    assert lines[-1]["outcome"] == "idle", (end.text, log.read_text())
    assert "--oops" in lines[0]["message"]
    assert "--oops" in end.text, "the sentence is on stderr too"
    assert end.text.count("\n") == 1


@concurrent
def test_a_full_container_log_delays_nothing_and_the_engines_own_writes_still_block(lab: Lab) -> Case:
    listener = lab.listener(pages(BUSY))
    with full_pipe() as pipe:
        need_root()
        unshare = program("unshare")
        need(unshare, "-p", "-f", "--mount-proc", "true")
        words = [unshare, "-p", "-f", "--mount-proc", "--kill-child", "/bin/sleep", "60"]
        first = child_of(lab.other(*words, stdout=pipe, env={}).pid)
        time.sleep(0.1)
        run = lab.hook("--engine", "vllm", "--url", listener.url, through=entered(first))
        yield
        run.keeps_the_timeline(listener, reads=5)
        assert run.end().status == 0
        assert not fcntl.fcntl(pipe, fcntl.F_GETFL) & os.O_NONBLOCK


@concurrent
@pytest.mark.parametrize("where", ["closed", "socket"])
def test_a_container_without_a_log_gets_the_lines_on_stderr(lab: Lab, where: str) -> Case:
    import socket

    listener = lab.listener(pages(IDLE))
    need_root()
    unshare = program("unshare")
    need(unshare, "-p", "-f", "--mount-proc", "true")
    script = "exec /bin/sleep 60 >&-" if where == "closed" else "exec /bin/sleep 60"
    ours, theirs = socket.socketpair()
    with ours, theirs:
        words = [unshare, "-p", "-f", "--mount-proc", "--kill-child", "/bin/sh", "-c", script]
        first = child_of(lab.other(*words, stdout=theirs.fileno(), env={}).pid)
        time.sleep(0.2)
        run = lab.hook("--engine", "vllm", "--url", listener.url, through=entered(first))
        yield
        is_idle(run)


@concurrent
def test_with_a_shared_process_namespace_the_listeners_owner_has_the_log(lab: Lab) -> Case:
    """PID 1 is another container's: it too holds the listener here, and must not get the lines."""
    listener = lab.listener(pages(BUSY, IDLE))
    folder = lab.new_folder()
    pause_log, engine_log = folder / "pause", folder / "engine"
    unshare = program("unshare")
    engine = f"{unshare} -m /bin/sh -ec 'mount -t proc proc /proc; exec /bin/sleep 60' > {engine_log} &"
    first = container(lab, pause_log, f"{engine}\nexec /bin/sleep 60", pass_fds=[listener.fileno()])
    engine_pid = child_of(first)
    wait_for(lambda: b"sleep" in Path(f"/proc/{engine_pid}/cmdline").read_bytes().split(b"\0")[0])
    run = lab.hook("--engine", "vllm", "--url", listener.url, through=entered(engine_pid))
    yield
    end = run.end()
    assert end.status == 0
    assert json_lines(engine_log.read_text())[-1]["outcome"] == "idle", (end.text, pause_log.read_text())
    assert pause_log.read_text() == ""
    assert end.text == ""


@concurrent
def test_with_a_shared_process_namespace_and_no_owner_seen_stderr_has_the_lines(lab: Lab) -> Case:
    listener = lab.listener(pages(IDLE))
    folder = lab.new_folder()
    pause_log, engine_log = folder / "pause", folder / "engine"
    unshare = program("unshare")
    engine = f"{unshare} -m /bin/sh -ec 'mount -t proc proc /proc; exec /bin/sleep 60' > {engine_log} &"
    first = container(lab, pause_log, f"{engine}\nexec /bin/sleep 60")
    engine_pid = child_of(first)
    wait_for(lambda: b"sleep" in Path(f"/proc/{engine_pid}/cmdline").read_bytes().split(b"\0")[0])
    run = lab.hook("--engine", "vllm", "--url", listener.url, through=entered(engine_pid))
    yield
    is_idle(run)
    assert pause_log.read_text() == engine_log.read_text() == ""


def wait_for(happened: object) -> None:
    assert callable(happened)
    until_s = time.monotonic() + 10
    while not happened():
        assert time.monotonic() < until_s, "it did not happen"
        time.sleep(0.01)
