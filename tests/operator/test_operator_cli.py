"""drainagent-operator as its users see it, and that the agent needs none of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from operator_glue.__main__ import EXTRA
from operator_glue.cli import cli
from operator_glue.crd import custom_resource_definition
from operator_glue.manifest import read_manifests, write_manifests

GOOD = """\
apiVersion: drainagent.io/v1alpha1
kind: ModelDeployment
metadata: {name: llama}
spec:
  model: {name: m}
  engine: {name: vLLM, image: vllm/vllm-openai:v0.12.0}
  retirement: {withoutRouter: ProveFromMember}
  roles:
  - name: serve
    replicas: 2
"""
BAD = GOOD.replace("replicas: 2", "replicas: -2\n    size: 0\n    bogus: 1")
SERVICE = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n"


def run(*arguments: str, text: str = "") -> Result:
    return CliRunner().invoke(cli, arguments, input=text, prog_name="drainagent-operator")


def test_crds_prints_the_definition() -> None:
    result = run("crds")
    assert result.exit_code == 0
    assert yaml.safe_load(result.stdout) == custom_resource_definition()
    assert list(yaml.safe_load(result.stdout)) == ["apiVersion", "kind", "metadata", "spec"]


def test_validate_takes_what_is_right(tmp_path: Path) -> None:
    file = tmp_path / "llama.yaml"
    file.write_text(GOOD)
    result = run("validate", "-f", str(file))
    assert (result.exit_code, result.stdout, result.stderr) == (0, "ModelDeployment/llama (line 1): taken\n", "")


def test_validate_names_every_mistake() -> None:
    result = run("validate", "-f", "-", text=BAD)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "ModelDeployment/llama (line 1): refused",
        '  unknown field "spec.roles[0].bogus"',
        "  spec.roles[0].replicas: Invalid value: -2: spec.roles[0].replicas in body should be greater than or "
        "equal to 0",
        "  spec.roles[0].size: Invalid value: 0: spec.roles[0].size in body should be greater than or equal to 1",
    ]


def test_warnings_are_on_stderr_and_refuse_nothing() -> None:
    result = run("validate", "-f", "-", text=GOOD.replace("replicas: 2", "extraArgs: [--port, '9']"))
    assert result.exit_code == 0
    assert result.stdout == "ModelDeployment/llama (line 1): taken\n"
    assert result.stderr.startswith("warning: spec.roles[0].extraArgs: --port moves the listener")


def test_other_objects_are_named_and_left_aside() -> None:
    result = run("validate", "-f", "-", text=f"{SERVICE}---\n{GOOD}")
    assert result.exit_code == 0
    assert result.stdout == "ModelDeployment/llama (line 4): taken\n"
    assert "left aside: Service/web (v1) is no ModelDeployment" in result.stderr


def test_nothing_to_judge_is_no_success() -> None:
    result = run("validate", "-f", "-", text=SERVICE)
    assert result.exit_code == 1
    assert "there is no ModelDeployment in it" in result.stderr
    assert run("validate", "-f", "-", text="# nothing\n").exit_code == 1


def test_an_item_of_a_list_is_judged() -> None:
    items = "".join(f"  {line}\n" for line in GOOD.splitlines()).replace("  api", "- api", 1)
    result = run("validate", "-f", "-", text=f"apiVersion: v1\nkind: List\nitems:\n{items}")
    assert result.stdout == "ModelDeployment/llama (line 1): taken\n"


def test_a_key_that_is_there_twice_is_named_with_its_lines() -> None:
    result = run("validate", "-f", "-", text=GOOD.replace("    replicas: 2", "    replicas: 2\n    replicas: 3"))
    assert result.exit_code == 1
    assert "line 11: the key replicas is there already (line 10)" in result.stdout


def test_two_objects_without_a_separator_are_not_one() -> None:
    result = run("validate", "-f", "-", text=GOOD + SERVICE)
    assert result.exit_code == 1
    assert "the key kind is there already (line 2)" in result.stdout


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: b: c", "line 1, column 5: mapping values are not allowed"),
        ("a: [", "line 2, column 1"),
        ("a: *b", "there is no anchor &b"),
        ("a: !!python/object:os.system x", "line 1: the tag"),
        ("null: 1", "a key is null"),
    ],
)
@pytest.mark.parametrize("command", ["validate", "render"])
def test_what_is_no_yaml_is_one_sentence(command: str, text: str, words: str) -> None:
    result = run(command, "-f", "-", text=text)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert words in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["validate"],
        ["validate", "-f", "/no/such/file"],
        ["render", "-f", "-", "--kubernetes", "latest"],
        ["render", "-f", "-", "--delivery", "by-mail"],
        ["render", "-f", "-", "--agent-image", "not an image"],
        ["render", "-f", "-", "--pod-ip-family", "5"],
    ],
)
def test_wrong_usage_is_exit_status_2(arguments: list[str]) -> None:
    result = run(*arguments, text=GOOD)
    assert result.exit_code == 2
    assert result.stdout == ""


def test_render_prints_a_stream_that_is_the_same_each_time() -> None:
    result = run("render", "-f", "-", text=GOOD)
    assert result.exit_code == 0
    kinds = [found["kind"] for found in yaml.safe_load_all(result.stdout)]
    assert kinds == ["Service", "Pod", "Pod"]
    assert run("render", "-f", "-", text=GOOD).stdout == result.stdout
    assert "metadata.uid" in result.stderr  # the owner is not known offline


def test_render_prints_nothing_of_a_file_with_a_mistake() -> None:
    result = run("render", "-f", "-", text=f"{GOOD}---\n{BAD}")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert 'ModelDeployment/llama (line 11): unknown field "spec.roles[0].bogus"' in result.stderr


def test_render_takes_what_the_cluster_is() -> None:
    decode = GOOD.replace("replicas: 2", "kind: Decode").replace(
        "retirement: {withoutRouter: ProveFromMember}", "router: {name: llm-d-router, image: r}"
    )
    old = run("render", "-f", "-", "--kubernetes", "1.28", "--pod-ip-family", "6", text=decode)
    new = run("render", "-f", "-", "--kubernetes", "v1.34.4", text=decode)
    assert "no native sidecars" in old.stderr
    assert "no native sidecars" not in new.stderr
    assert "'::'" in old.stdout
    assert "restartPolicy: Always" in new.stdout
    image = run("render", "-f", "-", "--agent-image", "corp/agent:1", "--delivery", "image-volume", text=GOOD)
    assert "reference: corp/agent:1" in image.stdout
    assert "image volumes" in image.stderr


@pytest.mark.parametrize(
    ("plain", "value"),
    [
        ("y", True),
        ("N", False),
        ("on", True),
        ("~", None),
        ("1:30", "1:30"),
        ("1e3", 1000.0),
        ("1_000", 1000),
        ("010", 8),
        ("0o10", 8),
        ("0x1F", 31),
        ("-0b11", -3),
        ("08", 8.0),
        (".5", 0.5),
        ("+12", 12),
        ("2026-01-02", "2026-01-02"),
        ("1.2.3", "1.2.3"),
        ("0x", "0x"),
        ("yess", "yess"),
        ("=", "="),
    ],
)
def test_plain_scalars_are_what_kubectl_takes_them_for(plain: str, value: object) -> None:
    (found,) = read_manifests(f"a: {plain}")
    assert found.data == {"a": value}
    assert type(found.data["a"]) is type(value)


@pytest.mark.parametrize(
    "text", ["y", "N", "1e3", "010", "1:30", "true", "", "~", "2026-01-02", "a\nb\n", "é", "x: y", "-"]
)
def test_text_is_written_so_that_kubectl_reads_text(text: str) -> None:
    data = {"a": text, "list": [text], text or "key": {"b": 1, "a": 2}}
    (found,) = read_manifests(write_manifests([data]))
    assert found.data == data
    assert list(found.data) == list(data)


def test_the_example_of_the_docs_is_taken() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operator.md").read_text(encoding="utf-8")
    result = run("validate", "-f", "-", text=page.partition("```yaml\n")[2].partition("```")[0])
    assert (result.exit_code, result.stderr) == (0, "")


def test_help_is_there() -> None:
    for arguments in ([], ["crds"], ["validate"], ["render"]):
        result = run(*arguments, "--help")
        assert result.exit_code == 0
        assert "Usage: drainagent-operator" in result.stdout


_BLOCK = f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {sorted(EXTRA)!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name.partition(".")[0])
sys.meta_path.insert(0, Block())
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def test_without_the_extra_it_says_what_to_install() -> None:
    done = python(
        f"{_BLOCK}\nsys.argv = ['drainagent-operator', 'crds']\nfrom operator_glue.__main__ import main\nmain()"
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.endswith("which is not installed: pip install 'drainagent[operator]'\n")
    assert len(done.stderr.splitlines()) == 1


def test_the_agent_runs_without_the_operators_dependencies() -> None:
    done = python(
        f"{_BLOCK}\nimport drainagent, drainagent.hook, drainagent.check, drainagent.cli\n"
        f"import drainagent.workstation.inject, drainagent.workstation.demo, drainagent.workstation.plan\n"
        f"drainagent.cli.main(['gauges'])"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "vllm:num_requests_running" in done.stdout


def test_the_agent_imports_nothing_of_the_operator() -> None:
    done = python(
        "import sys, drainagent, drainagent.hook, drainagent.check, drainagent.cli, drainagent.workstation.inject\n"
        f"roots = {{name.partition('.')[0] for name in sys.modules}}\n"
        f"print(sorted(roots & (set({sorted(EXTRA)!r}) | {{'operator_glue', 'lark', 'rpds'}})))"
    )
    assert done.stdout == "[]\n", done.stderr


def test_install_prints_what_installs_it() -> None:
    result = run("install", "--image", "registry.corp/operator:1", "--agent-image", "registry.corp/agent:1")
    assert result.exit_code == 0
    found = list(yaml.safe_load_all(result.stdout))
    (deployment,) = [item for item in found if item["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.corp/operator:1"
    assert "--agent-image=registry.corp/agent:1" in container["args"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--operator-namespace", "Up"], "'Up' is no name of a namespace"),
        (["--operator-namespace", "kube-system"], "is no place for the operator"),
        (["--inject-only", "--namespace", "models"], "namespaces opt in by their label"),
        (["--replicas", "0"], "is not in the range 1<=x<=5"),
    ],
)
def test_install_refuses_what_does_not_go_together(arguments: list[str], said: str) -> None:
    result = run("install", *arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--agent-image is needed"),
        (["--agent-image", "a:1", "--inject-only", "--namespace", "models"], "--inject-only watches no namespace"),
        (["--agent-image", "a:1", "--inject-only", "--no-webhooks"], "--inject-only watches no namespace"),
        (["--agent-image", "a:1", "--kubeconfig", "/nowhere/config"], "does not exist"),
        (["--agent-image", "a:1", "--webhook-port", "0"], "is not in the range"),
    ],
)
def test_run_refuses_what_does_not_go_together(arguments: list[str], said: str) -> None:
    result = run("run", *arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())


def test_run_says_that_there_is_no_cluster(tmp_path: Path) -> None:
    """In one sentence, with the address."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "clusters": [{"name": "x", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "x", "user": {}}],
    }
    file = tmp_path / "config"
    file.write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "operator_glue", "run", "--kubeconfig", str(file), "--agent-image", "a:1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "GET /version" in done.stderr
    assert "Traceback" not in done.stderr
