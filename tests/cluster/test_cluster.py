"""The cluster does what the suites on it rely on. Start it first: cluster.sh up."""

from __future__ import annotations

import contextlib
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kube import Kube, KubectlError, load_image

HERE = Path(__file__).parent


@pytest.fixture
def kube() -> Iterator[Kube]:
    kube = Kube.of_cluster(f"cluster-{uuid.uuid4().hex[:8]}")
    kube.create_namespace()
    yield kube
    kube.delete_namespace(wait=False)


def pod(name: str, script: str, **spec: Any) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": "main",
        "image": "localhost/busybox:rig",
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", script],
        **spec.pop("container", {}),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container], **spec},
    }


def eventually(attempt: Callable[[], str], seconds: float = 20) -> str:
    """kube-proxy learns of a ready Pod a moment after kubectl does."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(KubectlError):
            return attempt()
        time.sleep(0.2)
    return attempt()


def test_a_pre_stop_hook_is_run_and_waited_for(kube: Kube) -> None:
    hook = {"preStop": {"exec": {"command": ["sh", "-c", "echo hooked >/proc/1/fd/1; sleep 2; exit 3"]}}}
    script = "trap 'echo stopped; exit 0' TERM; echo started; while :; do sleep 0.1; done"
    kube.apply(pod("hooked", script, container={"lifecycle": hook}, terminationGracePeriodSeconds=30))
    kube.wait("pod/hooked")
    follow = subprocess.Popen(kube.command("logs", "--follow", "hooked"), stdout=subprocess.PIPE, text=True)
    kube.delete("pod/hooked")
    assert follow.communicate(timeout=10)[0].split() == ["started", "hooked", "stopped"]
    (event,) = kube.events("hooked", "FailedPreStopHook")
    assert event["message"] == "PreStopHook failed"


def test_exec_logs_and_what_kubectl_says_on_failure(kube: Kube) -> None:
    kube.apply(pod("plain", "echo a line; sleep 600"))
    kube.wait("pod/plain")
    assert kube.logs("plain") == "a line\n"
    assert kube.exec("plain", "cat", stdin="through") == "through"
    with pytest.raises(KubectlError, match="command terminated with exit code 7") as failure:
        kube.exec("plain", "sh", "-c", "exit 7")
    assert failure.value.status == 7
    with pytest.raises(KubectlError, match='pods "none" not found'):
        kube.get("pod/none")


def test_an_image_is_mounted_as_a_volume(kube: Kube, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("from the image\n")
    image = [str(HERE / "image.py"), "localhost/volume:test", f"/opt/file={tmp_path / 'file'}"]
    (tmp_path / "image.tar").write_bytes(subprocess.run(image, check=True, capture_output=True).stdout)
    load_image(tmp_path / "image.tar")
    volume = {"name": "agent", "image": {"reference": "localhost/volume:test", "pullPolicy": "Never"}}
    mount = {"volumeMounts": [{"name": "agent", "mountPath": "/mnt", "subPath": "opt", "readOnly": True}]}
    kube.apply(
        pod("mounts", "cat /mnt/file; ! touch /mnt/x 2>&1", container=mount, volumes=[volume], restartPolicy="Never")
    )
    kube.wait("pod/mounts", "jsonpath={.status.phase}=Succeeded")
    assert kube.logs("mounts") == "from the image\ntouch: /mnt/x: Read-only file system\n"


def test_services_by_name_and_address_from_pods_and_from_this_machine(kube: Kube) -> None:
    kube.apply(pod("web", "mkdir /www; echo served >/www/index.html; exec httpd -f -p 8080 -h /www"))
    kube.apply(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web"},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]},
        }
    )
    kube.wait("pod/web")
    kube.apply(pod("client", "sleep 600"))
    kube.wait("pod/client")
    url = f"http://web.{kube.namespace}.svc.cluster.local/"
    assert eventually(lambda: kube.exec("client", "wget", "-qO-", url)) == "served\n"
    # To itself by its service: a packet that leaves a Pod and comes back in.
    assert kube.exec("web", "wget", "-qO-", url) == "served\n"
    address = kube.get("service/web")["spec"]["clusterIP"]
    with urllib.request.urlopen(f"http://{address}/", timeout=5) as answer:
        assert answer.read() == b"served\n"
