"""Fuzzes the page reader beside prometheus-client's parser: ``python tests/fuzz/fuzz_page.py -max_total_time=60``.

Fails on a crash, on any page that prometheus-client reads as busy and we as idle, and wherever the two read different
numbers from a page that we found nothing wrong with (tests/page_oracle.py). Arguments are libFuzzer's.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent.parent)]

from fuzzing import fuzz  # noqa: E402

DICTIONARY = [
    *(b"vllm:num_requests_running", b"vllm:num_requests_waiting", b"vllm:num_requests_swapped", b"vllm:", b"sglang:"),
    *(b"sglang:num_running_reqs", b"sglang:num_queue_reqs", b"sglang:num_prefill_prealloc_queue_reqs"),
    *(b"sglang:num_prefill_bootstrap_queue_reqs", b"sglang:http_requests_active", b"process_start_time_seconds"),
    *(b'{engine="0"}', b'endpoint="/generate"', b'endpoint="/metrics"', b'{"vllm:num_requests_running"', b"# HELP "),
    *(b"# TYPE ", b" gauge\n", b" counter\n", b" NaN", b" +Inf", b" 1e308", b" -1", b" 1_0", b" 0x1", b"\\\\", b'\\"'),
    *(b"\\n", b"\xc2\xa0", b"\xc2\x85", b"\xe2\x80\xa8", b"\x0b", b"\r", b"<html>", b" # {} 1", b" 1796033819000"),
]


def check(body: bytes) -> None:
    from page_oracle import faults

    wrong = faults(body)
    if wrong:
        raise AssertionError("; ".join(wrong))


def seeds() -> list[bytes]:
    """Our lines of every recorded page, with a line before and after each, and the small pages whole."""
    found = []
    for path in sorted((HERE.parent / "pages").glob("*.txt")):
        body = path.read_bytes()
        lines = body.splitlines(keepends=True)
        ours = {i for i, line in enumerate(lines) if b":num_" in line or b"requests_active" in line}
        kept = [line for i, line in enumerate(lines) if ours & {i - 1, i, i + 1}]
        found.append(body if len(body) < 4096 else b"".join(kept)[:4096])
    return [*found, b'{"vllm:num_requests_running",engine="0"} 1\n', b"vllm:num_requests_waiting 0 1796033819000\n"]


if __name__ == "__main__":
    fuzz("page", check, seeds, DICTIONARY, ["drainagent.page"], "page_oracle")
