"""Where the process begins. For a hook, the order matters: the alarm first, then what may fail.

Nothing is imported from the working directory or PYTHONPATH: a stray ``click.py`` there is not ours.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Sequence

from drainagent import number

#: OpenSSL and Python read these when TLS starts; a hook must behave the same whatever the container sets.
_TLS_VARIABLES = (
    "OPENSSL_CONF",
    "OPENSSL_CONF_INCLUDE",
    "OPENSSL_MODULES",
    "OPENSSL_ENGINES",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "SSLKEYLOGFILE",
)


#: The same 5 s as in drainagent.timeline (a test holds them equal), for when nothing can be imported.
_LAST_READ_BEFORE_KILL_S = 5.0


def main() -> None:
    """Entry point of ``drainagent`` and ``python -m drainagent``."""
    arguments = sys.argv[1:]
    sys.dont_write_bytecode = True  # nothing of ours is written to disk
    # Help alone is asked for by a person. Beside other words it stands in a Pod's hook, where it would end the wait.
    if arguments[:1] == ["hook"] and arguments[1:] not in (["--help"], ["-h"]):
        _hook(arguments[1:])
    else:
        _isolate()
        from drainagent.cli import main as run

        run(arguments)


def _hook(arguments: Sequence[str]) -> None:
    """Run the hook so that nothing of ours ends it early or keeps it past G - 3. Leaves without finalizers."""
    entered_s = time.monotonic()
    status = 1
    gc.disable()  # while importing, which makes no garbage; the hook turns it on again
    try:
        _isolate()
        from drainagent.timeline import timeline
        from drainagent.watchdog import arm_kernel_alarm, process_start_s

        schedule = timeline(_grace_s(arguments))
        if schedule.watchdog_s is not None:
            arm_kernel_alarm(process_start_s() + schedule.watchdog_s - time.monotonic())
        from drainagent.hook import run

        status = run(arguments, process_start_s())
    except KeyboardInterrupt:
        status = 0
    except BaseException as error:
        _wait_blind(arguments, error, entered_s)
    os._exit(status)


def _wait_blind(arguments: Sequence[str], error: BaseException, entered_s: float) -> None:
    """The hook's own code failed: keep the engine serving until G - 5, since a request may be in flight.

    Without a grace that can be read, or when even that code fails, until the kubelet ends it.
    """
    grace_s = _grace_s(arguments)
    end_s = None if grace_s is None else entered_s + max(0.0, grace_s - _LAST_READ_BEFORE_KILL_S)
    try:
        from drainagent.timeline import timeline
        from drainagent.watchdog import process_start_s

        schedule = timeline(grace_s)
        if schedule.no_read_after_s is not None:
            end_s = process_start_s() + max(schedule.settle_until_s, schedule.no_read_after_s)
    except Exception as another:
        error = another
    until = "the kubelet ends it" if end_s is None else f"G - 5, {end_s - entered_s:.1f} s from its start"
    _say(f"drainagent hook failed ({type(error).__name__}: {error}); it measures nothing and waits until {until}\n")
    while end_s is None or (left_s := end_s - time.monotonic()) > 0:
        time.sleep(3600 if end_s is None else min(left_s, 3600))


def _say(text: str) -> None:
    """To stderr, unless that would block."""
    try:
        import select

        poll = select.poll()
        poll.register(2, select.POLLOUT)
        if any(ready & select.POLLOUT for _, ready in poll.poll(0)):
            os.write(2, text.encode("utf-8", "backslashreplace")[:4096])
    except Exception:
        return


def _grace_s(arguments: Sequence[str]) -> float | None:
    """``--grace`` before anything is parsed or imported: the last one wins. None when it is missing or no number."""
    found = ""
    for index, word in enumerate(arguments):
        if word == "--grace" and index + 1 < len(arguments):
            found = arguments[index + 1]
        elif word.startswith("--grace="):
            found = word.partition("=")[2]
    return number(found)


def _isolate() -> None:
    """Take the working directory and PYTHONPATH out of the import path, and TLS settings out of the environment.

    The folder this package was found in stays, at the end. (``python -I`` does more, and is how a rendered hook
    starts: this is for whoever starts it otherwise.)
    """
    for name in _TLS_VARIABLES:
        os.environ.pop(name, None)
    if sys.flags.isolated:
        return
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    given = ["", *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    strays = {_absolute(entry) for entry in given} | {root}
    sys.path[:] = [entry for entry in sys.path if _absolute(entry) not in strays]
    sys.path.append(root)


def _absolute(entry: str) -> str:
    try:
        return os.path.abspath(entry)
    except OSError:  # the working directory is gone
        return entry


if __name__ == "__main__":
    main()
