"""``drainagent inject`` as a user runs it: text in, text out, exit status, what is said."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from drainagent.injection import Request
from drainagent.podspec import AgentImage
from drainagent.workstation.inject import inject_stream, remove_stream, verify_stream

IMAGE = ("--agent-image", "corp/agent:1")
DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: llama
spec:
  template:
    metadata:
      labels: {app: llama}  # the app
    spec:
      containers:
      # the engine
      - name: main
        image: corp/vllm-openai:v0.10.0
        command: ["vllm", "serve", "m"]   # in one line
        ports:
        - containerPort: 8000  # fixed
      terminationGracePeriodSeconds: 45  # long
"""
CONFIG = """\
# Source: chart/cm.yaml
kind:   ConfigMap
apiVersion: v1
metadata: { name: a,   labels: {} }   # odd   spacing
data:
  script: |
     containers: [ ]

"""
ROUTER = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: router}
spec: {template: {spec: {containers: [{name: router, command: [vllm-router]}]}}}
"""
SGLANG = """\
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: s}
spec:
  template:
    spec:
      containers:
        - name: sglang
          image: corp/sglang:v0.5.9
          args:
            - python3
            - -m
            - sglang.launch_server
"""


def inject(text: str | bytes, *options: str, image: bool = True) -> tuple[int, str, str]:
    """(exit status, stdout, stderr)"""
    command = [sys.executable, "-m", "drainagent", "inject", "-f", "-", *(IMAGE if image else ()), *options]
    data = text.encode() if isinstance(text, str) else text
    ran = subprocess.run(command, input=data, capture_output=True, check=False)
    return ran.returncode, ran.stdout.decode(), ran.stderr.decode()


def test_a_stream() -> None:
    stream = f"{CONFIG}---\n{DEPLOYMENT}---\n{ROUTER}---\n{SGLANG}"
    status, out, said = inject(stream)
    assert status == 0, said
    assert out.startswith(CONFIG + "---\n")
    assert f"---\n{ROUTER}---\n" in out
    lines = iter(out.splitlines())
    kept = [line for line in stream.splitlines() if "command: [" not in line]
    assert all(line in lines for line in kept)  # in this order: nothing moved, nothing lost
    assert 'command: ["vllm", "serve", "m", "--enable-server-load-tracking"]   # in one line' in out
    documents = list(yaml.safe_load_all(out))
    main = documents[1]["spec"]["template"]["spec"]["containers"][0]
    assert main["lifecycle"]["preStop"]["exec"]["command"][-1] == "45"
    assert documents[3]["spec"]["template"]["spec"]["containers"][0]["args"][-1] == "--enable-metrics"
    assert "Deployment/llama (line 9): container main: vLLM on port 8000 (by its command line)" in said
    assert "Deployment/router (line 27): no engine: router: vllm-router starts a router" in said
    assert "SGLang on port 30000" in said
    assert "--enable-metrics added to its command" in said
    assert "ConfigMap" not in said
    # Again: nothing. Back: every byte. In place: verified.
    assert inject(out)[1] == out
    assert inject(out, "--remove", image=False)[1] == stream
    assert inject(out, "--verify", image=False)[0] == 0
    status, verified, said = inject(stream, "--verify", image=False)
    assert (status, verified) == (1, "")
    assert "has no drain hook" in said


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("delivery", ["init-container", "image-volume", "in-image"])
def test_there_and_back(ending: str, delivery: str) -> None:
    text = f"{DEPLOYMENT}---\n{SGLANG}".replace("\n", ending)
    status, out, said = inject(text, "--delivery", delivery, "--grace", "120")
    assert status == 0, said
    assert out.count("\r\n") == (out.count("\n") if ending == "\r\n" else 0)
    assert out.count("120") >= 4
    assert inject(out, "--remove", image=False)[1] == text


def test_another_image_and_grace_replace_the_first() -> None:
    first = inject(DEPLOYMENT)[1]
    second = inject(first, "--grace", "90", "--agent-image", "corp/agent@sha256:" + "a" * 64)[1]
    assert "corp/agent:1" not in second
    assert second == inject(DEPLOYMENT, "--grace", "90", "--agent-image", "corp/agent@sha256:" + "a" * 64)[1]
    assert inject(second, "--remove")[1] == DEPLOYMENT
    assert inject(inject(first, "--delivery", "in-image")[1], "--remove")[1] == DEPLOYMENT


def test_written_anew_by_another_tool() -> None:
    """As kubectl get -o yaml does: keys sorted, comments gone."""
    written = yaml.safe_dump(yaml.safe_load(inject(DEPLOYMENT)[1]))
    assert inject(written)[1] == written
    assert yaml.safe_load(inject(written, "--remove")[1]) == yaml.safe_load(DEPLOYMENT)


def test_json_stays_json() -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": [yaml.safe_load(DEPLOYMENT), yaml.safe_load(ROUTER)]}
    for indent in (None, 4):
        text = json.dumps(listed, indent=indent) + "\n"
        status, out, said = inject(text)
        assert status == 0, said
        hook = json.loads(out)["items"][0]["spec"]["template"]["spec"]["containers"][0]["lifecycle"]
        assert hook["preStop"]["exec"]["command"][0] == "python3"
        assert json.loads(out)["items"][1] == listed["items"][1]
        assert inject(out, "--remove")[1] == text


def test_diff_is_a_patch(tmp_path: Path) -> None:
    stream = f"{CONFIG}---\n{DEPLOYMENT}---\n{ROUTER}---\n{SGLANG}"[:-1]  # no newline at the end
    status, diff, _ = inject(stream, "--diff")
    assert status == 0
    assert "+          lifecycle:\n" in diff
    file = tmp_path / "m.yaml"
    file.write_text(stream)
    subprocess.run(["patch", "-s", str(file)], input=diff.encode(), check=True)
    assert file.read_text() == inject(stream)[1]
    assert inject(inject(stream)[1], "--diff")[1] == ""


def test_the_image_is_named_and_noted() -> None:
    out = inject(DEPLOYMENT, "--agent-image-pull-policy", "Always", "--agent-image-pull-secret", "mirror")[1]
    spec = yaml.safe_load(out)["spec"]["template"]["spec"]
    assert spec["initContainers"][0]["imagePullPolicy"] == "Always"
    assert spec["imagePullSecrets"] == [{"name": "mirror"}]
    assert "can name another image tomorrow" in inject(DEPLOYMENT, "--agent-image", "corp:5000/agent", image=False)[2]
    assert "can name another image" not in inject(DEPLOYMENT)[2]


SCRIPT = DEPLOYMENT.replace('["vllm", "serve", "m"]', "[/start.sh]")
SLEEP = DEPLOYMENT.replace("        ports:\n", "        lifecycle: {preStop: {sleep: {seconds: 9}}}\n        ports:\n")
TWO = DEPLOYMENT.replace("      # the engine\n", "      - name: other\n        command: [vllm, serve, n]\n")
ALIASED = (
    DEPLOYMENT.replace("spec:\n  template:\n", "other: *t\nspec:\n  template: &t\n").replace(
        "metadata:\n  name: llama\nother: *t\n", "metadata:\n  name: llama\n"
    )
    + "other: *t\n"
)


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        (SCRIPT, (), ["Deployment/llama (line 14): left as it is", "--engine and --port"]),
        (SLEEP, (), ["left as it is", "preStop", "--replace-hook"]),
        (TWO, (), ["other (vLLM)", "main (vLLM)", "--container"]),
        (DEPLOYMENT, ("--container", "engine"), ["no engine was found in a container named engine"]),
        (ALIASED, (), ["document at line 14: left as it is", "line 20", "*t"]),
        (
            DEPLOYMENT.replace('["vllm", "serve", "m"]', "[python3, -m, sglang_router.launch_server]"),
            (),
            ["sglang_router.launch_server", "Pods of their own"],
        ),
    ],
)
def test_left_undone_is_said_and_left_as_it_was(text: str, options: tuple[str, ...], words: list[str]) -> None:
    status, out, said = inject(f"{SGLANG}---\n{text}", *options)
    assert status == 1
    assert out.endswith(f"---\n{text}")
    for word in words:
        assert word in said


def test_the_ways_out() -> None:
    assert inject(SCRIPT, "--engine", "vllm", "--port", "8000")[0] == 0
    assert inject(TWO, "--container", "other")[0] == 0
    status, out, _ = inject(SLEEP, "--replace-hook")
    assert status == 0
    assert yaml.safe_load(inject(out, "--remove")[1]) == yaml.safe_load(SLEEP)
    assert inject(ROUTER, "--engine", "vllm", "--port", "80")[0] == 1


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("a: [b\n", (), ["line 2, column 1"]),
        ("a: b\n---\nc: d\n e: f\n", (), ["line 4, column 3"]),
        (b"a: \xff\n", (), ["byte 4 is not UTF-8"]),
        ("a: b\n", ("--grace", "14"), ["--grace", "14", "15", "3600"]),
        ("a: b\n", ("--grace", "x"), ["--grace", "x"]),
        ("a: b\n", ("--port", "70000"), ["--port", "70000", "65535"]),
        ("a: b\n", ("--engine", "tgi"), ["--engine 'tgi' must be vllm or sglang"]),
        ("a: b\n", ("--delivery", "sidecar"), ["--delivery", "sidecar", "init-container"]),
        *(
            ("a: b\n", ("--agent-image", bad), [f"--agent-image '{bad}' is no image reference"])
            for bad in ("http://x y", "http://x/y:1", "agent:", "a//b:1", "x:y:z", "UPPER/A:1", "a:" + "t" * 90 + "@x")
        ),
        ("a: b\n", ("-f", "b.yaml"), ["-f takes one file, and was given 2"]),
        ("a: b\n", ("--leader", "ftp://x"), ["--leader 'ftp://x' must begin with http://"]),
        ("a: b\n", ("--leader-env", "1 bad"), ["--leader-env '1 bad' is no name of a variable"]),
        ("a: b\n", ("--agent-image-pull-secret", "A_B"), ["'A_B' is no name of a Secret"]),
        ("a: b\n", ("--remove", "--verify"), ["exclude each other"]),
        ("a: b\n", ("--leader", "http://x", "--leader-env", "Y"), ["exclude each other"]),
    ],
)
def test_wrong_usage_and_unreadable_input(text: str | bytes, options: tuple[str, ...], words: list[str]) -> None:
    status, out, said = inject(text, *options)
    assert (status, out) == (2, "")
    for word in words:
        assert word in said
    assert "Traceback" not in said


def test_no_image_is_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRAINAGENT_AGENT_IMAGE", raising=False)
    status, _, said = inject(DEPLOYMENT, image=False)
    assert status == 2
    assert "--agent-image" in said
    assert inject(DEPLOYMENT, "--delivery", "in-image", image=False)[0] == 0
    monkeypatch.setenv("DRAINAGENT_AGENT_IMAGE", "mirror/agent:2")
    assert "mirror/agent:2" in inject(DEPLOYMENT, image=False)[1]


def test_files(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "drainagent", "inject", *IMAGE, "-f"]
    ran = subprocess.run([*command, str(tmp_path / "no.yaml")], capture_output=True, check=False, text=True)
    assert ran.returncode == 2
    assert "no.yaml: No such file" in ran.stderr
    (tmp_path / "a.yaml").write_text(DEPLOYMENT)
    ran = subprocess.run([*command, str(tmp_path / "a.yaml")], capture_output=True, check=False, text=True)
    assert ran.stdout == inject(DEPLOYMENT)[1]
    assert (tmp_path / "a.yaml").read_text() == DEPLOYMENT


def test_a_gate_does_not_pass_on_nothing() -> None:
    for text in ("", CONFIG, ROUTER):
        status, _, said = inject(text, "--verify", image=False)
        assert status == 1
        assert "no engine was found" in said


def test_a_grace_that_was_raised_by_hand_stays() -> None:
    out = inject(SGLANG)[1]
    raised = out.replace("terminationGracePeriodSeconds: 30", "terminationGracePeriodSeconds: 90")
    again = yaml.safe_load(inject(raised)[1])["spec"]["template"]["spec"]
    assert again["terminationGracePeriodSeconds"] == 90
    assert again["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][-1] == "90"
    assert inject(raised, "--remove")[1] == SGLANG + "      terminationGracePeriodSeconds: 90\n"


def test_a_container_that_was_renamed_is_cleaned_too() -> None:
    renamed = inject(DEPLOYMENT)[1].replace("- name: main", "- name: engine")
    assert inject(renamed, "--remove")[1] == DEPLOYMENT.replace("- name: main", "- name: engine")
    assert inject(renamed)[0] == 0


def test_nothing_of_a_manifest_can_write_a_line_of_the_report() -> None:
    hook = json.dumps({"preStop": {"exec": {"command": ["sh", "-c", "sleep 5\nDeployment/x: hook\x1b[31m"]}}})
    said = inject(DEPLOYMENT.replace("        ports:\n", f"        lifecycle: {hook}\n        ports:\n"))[2]
    assert "\x1b" not in said
    assert said.count("\n") == 1


def test_objects_can_be_told_apart() -> None:
    items = [yaml.safe_load(DEPLOYMENT) for _ in "ab"]
    for item, namespace in zip(items, "ab", strict=True):
        item["metadata"]["namespace"] = namespace
    said = inject(json.dumps({"kind": "List", "items": items}))[2]
    assert "Deployment/llama in a (line 1, items[0]):" in said
    assert "Deployment/llama in b (line 1, items[1]):" in said


def test_a_full_disk_is_said() -> None:
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "drainagent", "inject", "-f", "-", *IMAGE]
        ran = subprocess.run(command, input=DEPLOYMENT.encode(), stdout=full, stderr=subprocess.PIPE, check=False)
    assert ran.returncode == 2
    assert ran.stderr.decode() == "Error: standard output: No space left on device; what was written is not whole\n"


def test_kinds_that_are_not_known_are_listed() -> None:
    text = (
        "kind: Foo\napiVersion: corp.example/v1\n---\nkind: Foo\napiVersion: corp.example/v1\nspec: {containers: []}\n"
    )
    status, out, said = inject(text)
    assert (status, out) == (0, text)
    assert "not known here to hold Pods, left as they are: Foo corp.example/v1 (2)" in said
    assert "no engine was found" in said


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "---\n---\n", "[]\n", "text\n", "null\n"])
def test_nothing_in_nothing_out(text: str) -> None:
    status, out, _ = inject(text)
    assert (status, out) == (0, text)


FULL = """\
kind: Deployment
metadata: {name: a}
spec:
  template:
    metadata: {labels: {a: b}, annotations: {c: d}}
    spec:
      containers:
      - name: main
        image: vllm-openai:v0.9.0
        command: [vllm, serve, m]
        args: [--port, "81"]
        env: [{name: A, value: b}, {name: B, valueFrom: {}}]
        lifecycle: {postStart: {exec: {command: [a]}}, preStop: {exec: {command: [sleep]}}}
        volumeMounts: [{name: x, mountPath: /x}]
      initContainers: [{name: i}]
      volumes: [{name: x, emptyDir: {}}]
      imagePullSecrets: [{name: s}]
      securityContext: {runAsUser: 0}
      terminationGracePeriodSeconds: 45
"""
ODD: tuple[Any, ...] = (None, True, -1, 1.5, "", "60", [], {}, ["x"], [None], [[]], {"a": 1}, {"name": "drainagent"})
ODD_LISTS = ([{"name": "drainagent"}], ["sh", "-c", "vllm serve m"])


def every_path(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ()):
        yield from every_path(inner, (*path, key))


EVERY_PATH = list(every_path(yaml.safe_load(FULL)))


@pytest.mark.parametrize("path", EVERY_PATH, ids=lambda path: ".".join(map(str, path)))
@pytest.mark.parametrize("injected", [False, True])
def test_whatever_stands_anywhere(path: tuple[Any, ...], injected: bool) -> None:
    """It is a sentence or a manifest that stays itself when it is injected again; never an exception."""
    stride = 6 if injected else 3  # its neighbours have the others: all of them everywhere take too long
    odds = ODD[EVERY_PATH.index(path) % stride :: stride]
    request = Request(image=AgentImage("corp/agent:1"), replace_hook=True)
    text = inject_stream(FULL, request).text if injected else FULL
    for odd in (*odds, *ODD_LISTS):
        manifest = yaml.safe_load(text)
        place = manifest
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = odd
        given = yaml.safe_dump(manifest)
        result = inject_stream(given, request)
        assert inject_stream(result.text, request).text == result.text
        yaml.safe_load(remove_stream(given).text)
        verify_stream(given, request)
