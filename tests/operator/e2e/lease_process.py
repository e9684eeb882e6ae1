"""Holds the Lease as the operator does and writes a line into a ConfigMap five times a second for as long as it may.

    python lease_process.py KUBECONFIG NAMESPACE IDENTITY

Exit status 3: the fence held a write back.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from operator_glue.kube import Kube, Resource
from operator_glue.runtime.lease import WRITE_S, Lease, NotLeading

CONFIG_MAPS = Resource("", "v1", "configmaps")


async def main(kubeconfig: str, namespace: str, identity: str) -> int:
    kube = await Kube.connect(Path(kubeconfig))
    lease = Lease(kube, namespace, "contended", identity)
    fenced = kube.fenced(lease.check, WRITE_S)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await lease.acquire()
    keeping = asyncio.ensure_future(lease.keep())
    number = 0
    try:
        while not stop.is_set():
            number += 1
            line = {f"{lease.epoch:03d}-{number:05d}": identity}
            await fenced.patch(CONFIG_MAPS, namespace, "journal", {"data": line})
            await asyncio.sleep(0.2)
    except NotLeading:
        return 3
    finally:
        keeping.cancel()
        await lease.release()
        await kube.close()
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
