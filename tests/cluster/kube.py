"""kubectl for the suites that need a cluster: no Kubernetes client library, kubectl's own words on failure."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Object = dict[str, Any]  # a Kubernetes object, as JSON gives it
Manifest = str | Mapping[str, Any] | Sequence[Mapping[str, Any]]  # YAML or JSON text, an object, or several

CLUSTER = Path(__file__).parent / "cluster.sh"


class KubectlError(RuntimeError):
    """kubectl ended with another status than 0. The message is what it wrote to standard error."""

    def __init__(self, arguments: Sequence[str], status: int, stderr: str) -> None:
        self.status = status
        self.stderr = stderr.strip()
        super().__init__(f"kubectl {' '.join(arguments)}: exit status {status}: {self.stderr}")


@dataclass(frozen=True)
class Kube:
    """One cluster, one namespace. Times are in seconds. A resource is "kind/name", as kubectl takes it."""

    kubeconfig: Path
    kubectl: Path
    namespace: str = "default"

    @classmethod
    def of_cluster(cls, namespace: str = "default") -> Kube:
        """The cluster that cluster.sh has up. RuntimeError, in its words, when there is none."""
        script = f'settings=$("{CLUSTER}" env) && eval "$settings" && echo "$KUBECONFIG" && command -v kubectl'
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{done.stderr.strip()} (start one: {CLUSTER} up)")
        kubeconfig, kubectl = done.stdout.splitlines()
        return cls(Path(kubeconfig), Path(kubectl), namespace)

    def command(self, *arguments: str) -> list[str]:
        """The argv, for a caller that starts kubectl itself (`logs --follow`, `port-forward`)."""
        return [str(self.kubectl), "--kubeconfig", str(self.kubeconfig), "--namespace", self.namespace, *arguments]

    def run(self, *arguments: str, stdin: str | None = None, timeout: float = 60) -> str:
        """Standard output. KubectlError, or subprocess.TimeoutExpired."""
        done = subprocess.run(
            self.command(*arguments), input=stdin, capture_output=True, text=True, timeout=timeout, check=False
        )
        if done.returncode:
            raise KubectlError(arguments, done.returncode, done.stderr)
        return done.stdout

    def create_namespace(self) -> None:
        """The namespace of this Kube, ready for Pods (its service account is there)."""
        self.run("create", "namespace", self.namespace)
        self.run("wait", "--for=create", "serviceaccount/default", "--timeout=30s")

    def delete_namespace(self, *, wait: bool = True, timeout: float = 60) -> None:
        """With all in it. Waiting takes 5 to 8 s."""
        self.run(
            "delete", "namespace", self.namespace, "--ignore-not-found", f"--wait={str(wait).lower()}", timeout=timeout
        )

    def apply(self, manifest: Manifest, *, server_side: bool = False, dry_run: bool = False) -> list[Object]:
        """The objects as the API server has them."""
        options = ["--server-side"] * server_side + ["--dry-run=server"] * dry_run
        return _items(self.run("apply", "-f", "-", "-o", "json", *options, stdin=_text(manifest)))

    def delete(self, resource: str, *, grace: int | None = None, wait: bool = True, timeout: float = 120) -> None:
        """Fails when it is not there. With wait: until the object is gone."""
        options = [] if grace is None else [f"--grace-period={grace}"]
        self.run("delete", resource, f"--wait={str(wait).lower()}", *options, timeout=timeout)

    def get(self, resource: str) -> Object:
        found: Object = json.loads(self.run("get", resource, "-o", "json"))
        return found

    def find(self, kind: str, selector: str = "") -> list[Object]:
        return _items(self.run("get", kind, "-o", "json", "--selector", selector))

    def wait(self, resource: str, condition: str = "condition=Ready", timeout: float = 60) -> None:
        """Until it holds, as in kubectl wait --for: condition=Ready, delete, jsonpath={.status.phase}=Succeeded."""
        self.run("wait", f"--for={condition}", resource, f"--timeout={timeout:g}s", timeout=timeout + 10)

    def logs(self, pod: str, container: str = "", *, previous: bool = False) -> str:
        options = ["--container", container] * bool(container) + ["--previous"] * previous
        return self.run("logs", pod, *options)

    def events(self, name: str = "", reason: str = "") -> list[Object]:
        """Oldest first; of the object with this name, with this reason."""
        wanted = {"involvedObject.name": name, "reason": reason}
        fields = ",".join(f"{field}={value}" for field, value in wanted.items() if value)
        found = _items(self.run("get", "events", "-o", "json", "--field-selector", fields))
        return sorted(found, key=lambda event: str(event["metadata"]["creationTimestamp"]))

    def exec(self, pod: str, *command: str, container: str = "", stdin: str | None = None, timeout: float = 60) -> str:
        """Standard output. KubectlError carries the status of the command."""
        options = ["--container", container] * bool(container) + ["--stdin"] * (stdin is not None)
        return self.run("exec", pod, *options, "--", *command, stdin=stdin, timeout=timeout)


def load_image(archive: Path) -> None:
    """Makes a docker-archive or OCI archive known to the node (imagePullPolicy: Never)."""
    subprocess.run([CLUSTER, "load", archive], check=True, stdout=subprocess.DEVNULL)


def _text(manifest: Manifest) -> str:
    if isinstance(manifest, str):
        return manifest
    items = [manifest] if isinstance(manifest, Mapping) else list(manifest)
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def _items(answer: str) -> list[Object]:
    found = json.loads(answer)
    items: list[Object] = found["items"] if found["kind"].endswith("List") else [found]
    return items
