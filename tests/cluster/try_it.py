"""``make try``: a Pod of a plain Deployment deleted under load, as it is, and again after ``drainagent inject``.

On the cluster that is up (make cluster), with the stand-in engine. Exit status 1 when a request was cut with the hook.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import uuid
from typing import Any

import yaml
from hook import images
from hook.clients import PodLoad, stream
from hook.images import STANDIN
from hook.manifests import TOKENS_PER_S, delivery_options, inject
from kube import CLUSTER, Kube

DEPLOYMENT = f"""\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: llama
spec:
  selector:
    matchLabels: {{app: llama}}
  template:
    metadata:
      labels: {{app: llama}}
    spec:
      containers:
      - name: vllm
        image: {STANDIN}  # the stand-in engine, in place of vLLM's image
        imagePullPolicy: Never
        command: [vllm, serve, m, --tokens-per-second, "{TOKENS_PER_S}"]
        ports:
        - containerPort: 8000
        readinessProbe:
          httpGet: {{path: /health, port: 8000}}
          periodSeconds: 1
"""
#: Streams by when they begin and end, in seconds from the delete: some run at the delete, some come after it, as a
#: router sends them that has not heard yet. All could end within the default grace of 30 s.
STREAMS = ((-1.5, 3.0), (-1.0, 6.0), (-0.5, 9.0), (0.5, 4.0), (1.5, 7.0), (3.0, 8.0))
GRACE_S = 30


def drill(kube: Kube) -> int:
    """Deletes the Pod under load, shows its log, and says what came of each stream: how many did not finish."""
    (pod,) = (item for item in kube.find("pods", "app=llama") if "deletionTimestamp" not in item["metadata"])
    name, address = pod["metadata"]["name"], pod["status"]["podIP"]
    began = time.monotonic()
    delete_at = began + 2.5
    log = subprocess.Popen(kube.command("logs", "--follow", name, "-c", "vllm"), stdout=subprocess.PIPE, text=True)

    def show() -> None:
        assert log.stdout is not None
        for line in log.stdout:
            print(f"  {time.monotonic() - delete_at:5.1f} s  {line.rstrip()}", flush=True)

    shown = threading.Thread(target=show, daemon=True)
    shown.start()
    load = PodLoad([stream(*times) for times in STREAMS], address, 8000, delete_at)
    time.sleep(max(0.0, delete_at - time.monotonic()))
    print(f"    0.0 s  kubectl delete pod {name}", flush=True)
    kube.delete(f"pod/{name}", wait=False)
    answers = sorted(load.finish(GRACE_S + 10), key=lambda answer: answer.sent)
    shown.join(GRACE_S)
    log.terminate()
    cut = 0
    for answer in answers:
        cut += not answer.complete
        came = f"{answer.sent - delete_at:+.1f} s"
        ended = "" if answer.ended is None else f" at {answer.ended - delete_at:+.1f} s"
        print(f"  stream sent at {came}: {'finished' if answer.complete else f'CUT ({answer.fault})'}{ended}")
    print(f"  {len(answers) - cut} of {len(answers)} finished, {cut} cut\n", flush=True)
    return cut


def ready(kube: Kube, manifest: Any) -> None:
    kube.apply(manifest)
    kube.run("rollout", "status", "deployment/llama", "--timeout=120s", timeout=130)


def main() -> int:
    print("the images: built and loaded when they are not there (a minute, once)", flush=True)
    images.on_the_node()
    kube = Kube.of_cluster(f"try-{uuid.uuid4().hex[:6]}")
    kube.create_namespace()
    try:
        print(
            f"\n== A plain Deployment, as its owner wrote it (namespace {kube.namespace})\n\n{DEPLOYMENT}", flush=True
        )
        ready(kube, DEPLOYMENT)
        print("== Its Pod, deleted under load\n", flush=True)
        cut_before = drill(kube)
        print("== The same after: drainagent inject -f llama.yaml --agent-image …\n", flush=True)
        manifest, said = inject(yaml.safe_load(DEPLOYMENT), *delivery_options("init-container"))
        print("  " + said.strip().replace("\n", "\n  ") + "\n", flush=True)
        ready(kube, manifest)
        cut_after = drill(kube)
    finally:
        kube.delete_namespace(wait=False)
    print(f"without the hook {cut_before} of {len(STREAMS)} streams were cut, with it {cut_after}.")
    print(f'The cluster is still up: eval "$({CLUSTER} env)"; kubectl get nodes. make cluster-down ends it.')
    return 1 if cut_after else 0


if __name__ == "__main__":
    sys.exit(main())
