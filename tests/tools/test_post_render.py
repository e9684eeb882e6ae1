"""`drainagent inject` behind Helm 3, Helm 4 and kustomize, as run by hand and in CI. First, once: tests/tools/setup.sh

What was read in Helm's source (3.22.0, 4.3.2) and is held here by running it:

- Helm 3 starts any program. It gives it the chart without its hooks, with a `# Source:` line before each document.
- Helm 4 starts a plugin. It gives it the hooks too, and every object gets an annotation, postrender-filename, which has
  to come back: Helm takes it off again.
- Comments of the templates get through both.
- Both show nothing of the program's standard error while it exits 0. When it does not, Helm 3 shows all of it and
  Helm 4 nothing, which is why the plugin has a script.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

HERE = Path(__file__).parent
CHART = str(HERE / "chart")
PLUGIN = HERE.parents[1] / "deploy" / "helm-plugin"
TOOLS = Path(os.environ.get("DRAINAGENT_TOOLS") or Path.home() / ".cache/drainagent/tools")
IMAGE = "localhost/agent:rig"
INJECT = ["inject", "-f", "-", "--agent-image", IMAGE]
Objects = dict[str, dict[str, Any]]  # by kind/name


@pytest.fixture(scope="session", autouse=True)
def tools_are_built() -> None:
    missing = [name for name in ("helm3", "helm4", "kustomize") if not (TOOLS / name).exists()]
    if missing:
        pytest.fail(f"missing in {TOOLS}: {', '.join(missing)}; tests/tools/setup.sh builds them")


class Shell:
    """Commands with drainagent and the tools in PATH, and Helm's folders in a place of their own."""

    def __init__(self, home: Path) -> None:
        self.folder = home
        self.path = [str(Path(sys.executable).parent), str(TOOLS), os.environ["PATH"]]

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        folders = {f"HELM_{kind}_HOME": str(self.folder / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
        environment = {**os.environ, **folders, "PATH": ":".join(self.path), "CHART": CHART, "PLUGIN": str(PLUGIN)}
        command = ["bash", "-euo", "pipefail", "-c", script]
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    def out(self, script: str) -> str:
        done = self.run(script)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def stand_in(self, script: str) -> None:
        """A program that is found as drainagent."""
        (self.folder / "bin").mkdir()
        program = self.folder / "bin" / "drainagent"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        self.path.insert(0, str(program.parent))


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


HELM3 = "helm3 template llama $CHART --post-renderer drainagent " + " ".join(
    f"--post-renderer-args {a}" for a in INJECT
)
HELM4 = f"helm4 template llama $CHART --post-renderer drainagent --post-renderer-args --agent-image={IMAGE}"
INSTALL = "helm4 plugin install $PLUGIN >/dev/null; "


def objects(manifest: str) -> Objects:
    found = [document for document in yaml.safe_load_all(manifest) if document]
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in found}


def pod_spec(engine: Mapping[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = engine["spec"]["template"]["spec"]
    return spec


def check_injected(before: str, after: str) -> None:
    """The engine has the hook; every other object is what it was."""
    was, now = objects(before), objects(after)
    assert sorted(was) == sorted(now)
    for name in was.keys() - {"Deployment/llama-engine"}:
        assert now[name] == was[name], name
    spec = pod_spec(now["Deployment/llama-engine"])
    command = spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert command[:4] == ["python3", "-ISB", "/opt/drainagent", "hook"]
    assert command[-2:] == ["--grace", "60"]
    assert spec["terminationGracePeriodSeconds"] == 60
    assert [(one["name"], one["image"]) for one in spec["initContainers"]] == [("drainagent", IMAGE)]
    assert [one["name"] for one in spec["volumes"]] == ["drainagent"]
    assert spec["containers"][0]["env"] == [{"name": "GREETING", "value": "yes"}]
    for comment in (
        "# flow style, on purpose",
        "# a string that looks like a boolean",
        "# Kept by whoever reads this.",
    ):
        assert after.count(comment) == before.count(comment), comment
    assert "postrenderer.helm.sh" not in after


def test_helm_3(shell: Shell) -> None:
    before = shell.out("helm3 template llama $CHART")
    assert before.count("# flow style, on purpose") == 1
    check_injected(before, shell.out(HELM3))


def test_helm_4(shell: Shell) -> None:
    before = shell.out("helm4 template llama $CHART")
    assert before.count("# flow style, on purpose") == 1
    check_injected(before, shell.out(INSTALL + HELM4))


def test_kustomize(shell: Shell) -> None:
    """Comments are gone before drainagent sees it: kustomize drops them."""
    (shell.folder / "kustomization.yaml").write_text("resources: [all.yaml]\nnamespace: serving\n")
    before = shell.out("helm3 template llama $CHART >all.yaml; kustomize build .")
    after = shell.out("kustomize build . | drainagent " + " ".join(INJECT))
    check_injected(before, after)


@pytest.mark.parametrize(
    "again", ["helm3 template llama $CHART | drainagent {0} | drainagent {0}", INSTALL + HELM4 + " | drainagent {0}"]
)
def test_a_second_pass_changes_nothing(shell: Shell, again: str) -> None:
    once, _, _ = again.rpartition(" | ")
    inject = " ".join(INJECT)
    assert shell.out(again.format(inject)) == shell.out(once.format(inject).removeprefix(INSTALL))


def test_remove_gives_back_what_the_chart_rendered(shell: Shell) -> None:
    assert shell.out(HELM3 + " | drainagent inject -f - --remove") == shell.out("helm3 template llama $CHART")


def test_the_gate_in_ci(shell: Shell) -> None:
    gate = " | drainagent inject --verify -f - >/dev/null"
    without = shell.run("helm3 template llama $CHART" + gate)
    assert without.returncode == 1
    assert "Deployment/llama-engine" in without.stderr
    assert shell.run(HELM3 + gate).returncode == 0
    assert shell.run(INSTALL + HELM4 + gate).returncode == 0


def test_a_chart_that_does_not_render_fails_the_pipe(shell: Shell) -> None:
    """Without pipefail the gate alone would see an empty manifest."""
    broken = "helm3 template llama $CHART --set-string grace='[' "
    assert shell.run(broken + "| drainagent inject --verify -f - >/dev/null").returncode != 0


@pytest.mark.parametrize("helm", [HELM3, INSTALL + HELM4], ids=["helm3", "helm4"])
def test_the_reason_of_a_failure_is_shown(shell: Shell, helm: str) -> None:
    done = shell.run(helm + " --post-renderer-args --grace=1")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "exit status 2" in done.stderr
    assert "Invalid value for '--grace'" in done.stderr


def test_the_plugin_says_when_drainagent_is_not_there(shell: Shell) -> None:
    shell.path = [str(TOOLS), "/usr/bin:/bin"]
    done = shell.run(INSTALL + HELM4)
    assert done.returncode == 1
    assert "drainagent: not found" in done.stderr


@pytest.mark.parametrize(
    ("helm", "hooks", "arguments"),
    [
        (HELM3, 0, INJECT),
        (INSTALL + HELM4, 1, ["inject", "-f", "-", f"--agent-image={IMAGE}"]),
    ],
    ids=["helm3", "helm4"],
)
def test_what_helm_hands_over(shell: Shell, helm: str, hooks: int, arguments: list[str]) -> None:
    shell.stand_in(f'printf "%s\\n" "$@" >{shell.folder}/argv; tee {shell.folder}/stdin')
    shell.out(helm)
    assert (shell.folder / "argv").read_text().splitlines() == arguments
    given = objects((shell.folder / "stdin").read_text())
    assert list(given).count("Pod/llama-answers") == hooks
    marks = [
        one["metadata"].get("annotations", {}).get("postrenderer.helm.sh/postrender-filename") for one in given.values()
    ]
    assert all(marks) if hooks else not any(marks)


def test_helm_3_leaves_the_post_renderer_out_with_output_dir(shell: Shell) -> None:
    """So no gate may rely on it: the files are without the hook, and only `inject -f FILE` on each gives it to them."""
    shell.out(HELM3 + " --output-dir out")
    assert "lifecycle" not in (shell.folder / "out/serving/templates/engine.yaml").read_text()
