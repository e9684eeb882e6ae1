"""The hook a user would write by hand, for ``python3 -c``: the bare rule, and nothing else.

Settle 5 s; then once a second read the page, add up the gauges, and leave on the second zero in a row or at the
deadline. No count of requests in flight, no bound on a whole read, no log. Arguments: URL, deadline in seconds, and how
the gauges are found: ``lines`` (the cheapest we could write) or ``regex`` (an expression per gauge).
"""

import re
import sys
import time
import urllib.request

names = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "sglang:num_running_reqs",
    "sglang:num_queue_reqs",
    "sglang:num_prefill_bootstrap_queue_reqs",
    "sglang:num_prefill_inflight_queue_reqs",
    "sglang:num_decode_prealloc_queue_reqs",
    "sglang:num_decode_transfer_queue_reqs",
)
url, deadline, idle = sys.argv[1], time.monotonic() + float(sys.argv[2]), 0
time.sleep(5)
while idle < 2 and time.monotonic() < deadline:
    started = time.monotonic()
    try:
        page = urllib.request.urlopen(url, timeout=2).read().decode()
        if sys.argv[3] == "lines":
            total = sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(names))
        else:
            total = sum(float(v) for n in names for v in re.findall(rf"^{n}(?:{{.*}})? (\S+)", page, re.M))
        idle = idle + 1 if total == 0 else 0
    except (OSError, ValueError):
        idle = 0
    if idle < 2:
        time.sleep(max(0, 1 - (time.monotonic() - started)))
