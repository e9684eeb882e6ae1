"""Fuzzes what reads /proc: ``python tests/fuzz/fuzz_sockets.py -max_total_time=60``.

The socket table's parser (no crash, nothing negative, no more connections than rows) and the reader of engine command
lines (never raises). Arguments are libFuzzer's.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent.parent)]

from fuzzing import fuzz  # noqa: E402

TABLE = (
    b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    b"   0: 00000000:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 24631 1 0\n"
    b"   1: 0100007F:1F40 0500000A:C350 01 0000000A:00000003 01:00000014 00000000  1000        0 0 2\n"
)
TABLE_6 = (
    b"   0: 00000000000000000000000000000000:1F40 00000000000000000000000000000000:0000 0A 00000000:00000000 "
    b"00:00000000 00000000     0        0 24632 1 0\n"
    b"   1: 0000000000000000FFFF00000100007F:1F40 0000000000000000FFFF00000500000A:C350 04 00000001:00000000 "
    b"00:00000000 00000000     0        0 24633 1 0\n"
)


def check(data: bytes) -> None:
    from drainagent.engine_argv import read_command

    kind, data = data[:1], data[1:]
    if kind < b"\x80":
        _check_table(data)
        return
    words = [word.decode("utf-8", "surrogateescape") for word in data.split(b"\0")]
    env = {"V": "value", "PORT": words[-1]}
    read_command(words, env)
    read_command(words, expand=False)


def _check_table(table: bytes) -> None:
    from drainagent.sockets import (
        Connection,
        clients,
        endpoint,
        is_table,
        listener_inodes,
        listening_addresses,
        listening_ports,
    )

    own = Connection(endpoint("127.0.0.1", 8000), endpoint("10.0.0.5", 50000))
    everything = clients([table, TABLE_6], 8000)
    less = clients([table, TABLE_6], 8000, [own], [own], [(b"\x0a\x00\x00\x00", 8)])
    assert 0 <= less.connections <= everything.connections <= table.count(b":") + 2
    assert 0 <= less.unacked_bytes <= everything.unacked_bytes
    assert 0 <= less.unread_bytes <= everything.unread_bytes
    addresses = listening_addresses([table, TABLE_6], 8000)
    assert (8000 in listening_ports([table, TABLE_6])) == bool(addresses)
    listener_inodes([table], 8000)
    is_table(table)


def seeds() -> list[bytes]:
    try:
        from engine_command_lines import LINES
    except ImportError as error:  # the table of command lines has moved
        print(f"fuzz_sockets: without the command lines' seeds: {error}")
        lines = []
    else:
        lines = [b"\x80" + "\0".join(line.words).encode() for line in LINES]
    return [b"\0" + TABLE, b"\0" + TABLE_6, *lines, b"\x80sh\0-c\0exec vllm serve m --port $PORT"]


if __name__ == "__main__":
    words = [b"vllm", b"serve", b"sglang", b"--port", b"--host", b"--data-parallel-size", b"=", b"$(PORT)", b"\0-c\0"]
    words += [b"--api-server-count", b"--no-", b"{}", b"-tp", b"1F40", b" 01 ", b" 0A ", b"FFFFFFFF", b"0100007F:"]
    fuzz("sockets", check, seeds, words, ["drainagent.sockets", "drainagent.engine_flags", "drainagent.engine_argv"])
