"""The command line as a user meets it: a real process each."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from drainagent import __version__
from drainagent.catalogue import ENGINES
from drainagent.cli import cli


def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", "-m", "drainagent", *arguments],
        env=env or {},
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"drainagent, version {__version__}\n")


def test_help_lists_every_command() -> None:
    done = run("--help")
    assert done.returncode == 0
    for command in ("hook", "check", "gauges", "plan", "demo", "completion"):
        assert f"\n  {command} " in done.stdout


@pytest.mark.parametrize("command", ["hook", "check", "gauges", "plan", "demo", "completion"])
def test_each_help_says_its_exit_statuses(command: str) -> None:
    done = run(command, "--help")
    assert done.returncode == 0
    assert "Exit status" in done.stdout
    assert done.stderr == ""


def test_hook_help_has_the_timeline() -> None:
    text = run("hook", "--help").stdout
    for words in ("0 to 5 s", "5 s to G - 5", "G - 3", "about 6 s after the delete"):
        assert words in text


def test_options_are_those_of_the_specification() -> None:
    """cli.md: names that others script against."""
    expected = {
        "hook": "--engine --url --grace --settle --gauges-only --load-tracking --api-servers --ignore-peer --leader "
        "--leader-env --termination-log --log-format",
        "check": "--engine --url --confirm --watch --wait --json --gauges-only --load-tracking --api-servers "
        "--ignore-peer",
        "gauges": "--engine --json",
        "plan": "--grace --engine --kind --size --notice --json",
        "demo": "--engine --grace --plain",
    }
    import click

    context = click.Context(cli)
    for name, options in expected.items():
        command = cli.get_command(context, name)
        assert command is not None
        have = {word for parameter in command.params for word in parameter.opts}
        assert have == set(options.split()), name


def test_gauges_table_and_json() -> None:
    table = run("gauges").stdout
    rows = json.loads(run("gauges", "--json").stdout)
    names = {gauge.name for engine in ENGINES for gauge in engine.gauges}
    assert {row["name"] for row in rows} == names
    assert all(name in table for name in names)
    only = json.loads(run("gauges", "--json", "--engine", "SGLang").stdout)
    assert {row["engine"] for row in only} == {"SGLang"}


def test_gauges_of_an_unknown_engine() -> None:
    done = run("gauges", "--engine", "tgi")
    assert done.returncode == 2
    assert "--engine 'tgi' must be vllm or sglang" in done.stderr


@pytest.mark.parametrize(("shell", "word"), [("zsh", "compdef"), ("fish", "complete")])
def test_completion_script(shell: str, word: str) -> None:
    done = run("completion", shell)
    assert done.returncode == 0
    assert word in done.stdout
    assert "_DRAINAGENT_COMPLETE" in done.stdout


def test_bash_completion_completes() -> None:
    done = run(
        env={"_DRAINAGENT_COMPLETE": "bash_complete", "COMP_WORDS": "drainagent hook --le", "COMP_CWORD": "2"},
    )
    assert {line.partition(",")[2] for line in done.stdout.split()} == {"--leader", "--leader-env"}


def test_unknown_command_is_named() -> None:
    done = run("drain")
    assert done.returncode == 2
    assert "No such command 'drain'" in done.stderr


def test_the_hook_path_imports_neither_drawing_nor_demo_nor_parser() -> None:
    """Start-up is paid on every delete: nothing heavy that the hook does not use."""
    code = (
        "import sys; sys.argv = ['drainagent', 'hook', '--help']\n"
        "import drainagent.hook, drainagent.cli\n"
        "print(*sorted(sys.modules))"
    )
    loaded = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True, timeout=30
    ).stdout.split()
    for name in (
        "drainagent.workstation",
        "drainagent.check",
        "prometheus_client",
        "http.server",
        "httpx",
        "urllib.request",
    ):
        assert name not in loaded


def test_the_constant_that_needs_no_import_is_the_timelines() -> None:
    from drainagent import __main__, timeline

    assert timeline.LAST_READ_BEFORE_KILL_S == __main__._LAST_READ_BEFORE_KILL_S
