"""The images as a container runtime sees them, and run by one: uid 65532, no capability, read-only root."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import imagekit
import pytest
from imagekit import BUILD_IMAGES, LOCATION, Container, Image, bind, read_image, run, tmpfs

from drainagent import __version__

NAMES = ("agent", "agent-python", "standin", "standin-agent")
SHELLS = {"sh", "bash", "dash", "ash", "busybox"}


def archive(folder: Path, name: str) -> Path:
    image, _, variant = name.partition("-")
    return folder / f"drainagent-{image}-{__version__}{'-' if variant else ''}{variant}.tar"


@pytest.fixture(scope="module")
def images(built_images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Image]:
    unpacked = tmp_path_factory.mktemp("unpacked")
    return {name: read_image(archive(built_images, name), unpacked / name) for name in NAMES}


@pytest.fixture(scope="module")
def roots(images: dict[str, Image], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("roots")
    return {name: image.unpack(folder / name) for name, image in images.items()}


def config(image: Image) -> dict[str, object]:
    found: dict[str, object] = image.config["config"]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_labels_user_and_time(images: dict[str, Image], name: str) -> None:
    labels = images[name].config["config"]["Labels"]
    prefix = "org.opencontainers.image."
    assert labels[f"{prefix}version"] == __version__
    assert labels[f"{prefix}title"] == ("drainagent" if name.startswith("agent") else "drainagent stand-in")
    assert labels[f"{prefix}created"] == "2026-01-01T00:00:00Z" == images[name].config["created"]
    assert "Apache-2.0" in labels[f"{prefix}licenses"]
    assert labels[f"{prefix}description"]
    assert labels[f"{prefix}revision"]
    assert config(images[name])["User"] == "65532:65532"


@pytest.mark.parametrize("name", ["agent", "agent-python"])
def test_the_carrier_is_the_tree_and_the_copier(
    images: dict[str, Image], name: str, request: pytest.FixtureRequest
) -> None:
    tree: Path = request.getfixturevalue("tree" if name == "agent" else "python_tree")
    [layer] = range(len(images[name].layers))
    members = {member.name.rstrip("/"): member for member in images[name].members(layer)}
    assert set(members) == {*imagekit.listing(tree), "copy"}
    runnable = {name for name, member in members.items() if member.isfile() and member.mode & 0o111}
    own = {path for path in runnable if path.startswith("python/")}
    assert runnable - own == {"copy", "bin/drainagent"}
    assert {Path(path).parent.name for path in own} <= {"bin", "lib"}
    assert {(member.uid, member.gid, member.mtime) for member in members.values()} == {(0, 0, 1767225600)}
    assert config(images[name])["Entrypoint"] == ["/copy"]
    assert config(images[name])["Cmd"] == [LOCATION]


def test_no_image_has_a_shell(images: dict[str, Image]) -> None:
    for image in images.values():
        names = {Path(name).name for layer in range(len(image.layers)) for name in image.names(layer)}
        assert not names & SHELLS


def test_the_standin_has_no_agent(images: dict[str, Image]) -> None:
    names = images["standin"].names(0)
    assert not [name for name in names if name.startswith("opt/") or name.endswith("bin/drainagent")]
    modules = {Path(name).name for name in names if "/drainagent/" in name and name.endswith(".py")}
    assert modules & {"hook.py", "cli.py", "__main__.py"} == set()


def test_baking_in_adds_one_layer_and_changes_nothing_else(images: dict[str, Image], roots: dict[str, Path]) -> None:
    base, baked = images["standin"], images["standin-agent"]
    assert baked.config["rootfs"]["diff_ids"][:-1] == base.config["rootfs"]["diff_ids"]
    assert len(baked.layers) == len(base.layers) + 1
    ours = {name: baked.config["config"][name] for name in ("User", "Entrypoint", "Cmd", "Env")}
    assert ours == {name: base.config["config"][name] for name in ours}
    labels = dict(baked.config["config"]["Labels"])
    assert labels.pop("io.drainagent.agent-version") == __version__
    assert labels == base.config["config"]["Labels"]
    link = roots["standin-agent"] / "usr" / "local" / "bin" / "drainagent"
    assert os.readlink(link) == f"{LOCATION}/bin/drainagent"
    folders = {name.rstrip("/") for name in baked.names(len(base.layers)) if not name.startswith("opt/drainagent")}
    assert folders == {"opt", "usr", "usr/local", "usr/local/bin", "usr/local/bin/drainagent"}


def test_baking_in_leaves_the_folders_of_the_base_alone(built_images: Path, tmp_path: Path) -> None:
    """Debian's /usr/local/bin is 2775; an image may run as anybody and have its own entry point."""
    storage = built_images / "storage"

    def call(*arguments: str | Path) -> str:
        buildah: list[str | Path] = [
            "buildah",
            "--root",
            storage,
            "--runroot",
            storage / "run",
            "--storage-driver",
            "vfs",
        ]
        ended = run([*buildah, *arguments], os.environ)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.strip()

    base = tmp_path / "base"
    for name, mode in (("opt", 0o751), ("usr/local/bin", 0o2775), ("work", 0o755)):
        (base / name).mkdir(parents=True)
        (base / name).chmod(mode)
    container = call("from", "scratch")
    call("copy", container, base, "/")
    call("config", "--user", "1234", "--entrypoint", '["vllm", "serve"]', "--cmd", "--port 8000", container)
    call("config", "--env", "PATH=/usr/bin", "--env", "A=B", "--workingdir", "/work", "--label", "x=y", container)
    call("commit", "--rm", container, "localhost/base:1")
    build: list[str | Path] = ["--any-python", "--root", storage, "--archive", tmp_path, "--tag", "localhost/baked:1"]
    ended = run([BUILD_IMAGES, *build, "engine", "localhost/base:1"], {**os.environ, "PYTHON": sys.executable})
    assert ended.returncode == 0, ended.stderr
    baked = read_image(tmp_path / "localhost-baked-1.tar", tmp_path / "baked")
    modes = {member.name.rstrip("/"): member.mode & 0o7777 for member in baked.members(1) if member.isdir()}
    assert (modes["opt"], modes["usr/local/bin"], modes["opt/drainagent"]) == (0o751, 0o2775, 0o755)
    found = baked.config["config"]
    assert (found["User"], found["Entrypoint"], found["Cmd"]) == ("1234", ["vllm", "serve"], ["--port", "8000"])
    assert (found["WorkingDir"], sorted(found["Env"])) == ("/work", ["A=B", "PATH=/usr/bin"])


def test_same_input_same_digest(built_images: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    build: list[str | Path] = [
        "--any-python",
        "--root",
        again / "storage",
        "--archive",
        again,
        "carrier",
        "standin",
        "standin-agent",
    ]
    subprocess.run([BUILD_IMAGES, *build], env={**os.environ, "PYTHON": sys.executable}, check=True, umask=0o077)
    for name in ("agent", "standin", "standin-agent"):
        assert archive(again, name).read_bytes() == archive(built_images, name).read_bytes(), name


@pytest.mark.parametrize("name", ["agent", "agent-python"])
def test_the_carrier_copies_itself(roots: dict[str, Path], name: str, tmp_path: Path) -> None:
    command = ["/copy", LOCATION]
    ended = Container(tmp_path / "c", roots[name], command, mounts=[tmpfs(LOCATION, "size=64m")]).run()
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith(f"copy: drainagent {__version__}: ")


def test_a_carrier_that_cannot_write_says_so(roots: dict[str, Path], tmp_path: Path) -> None:
    ended = Container(tmp_path / "c", roots["agent"], ["/copy", LOCATION]).run()
    assert ended.returncode == 1
    assert ended.stderr == f"copy: mkdir {LOCATION}: read-only file system\n" or "/opt" in ended.stderr


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def engine(
    folder: Path, root: Path, argv: list[str], env: list[str], mounts: list[object] | None = None
) -> Iterator[Container]:
    """A container whose engine listens."""
    with Container(folder, root, argv, env, mounts or []) as container:
        while "listening on" not in container.log.read_text():
            assert container._process.poll() is None, container.log.read_text()
        yield container


def environment(image: Image) -> list[str]:
    found: list[str] = image.config["config"]["Env"]
    return found


STARTS = {
    "vllm serve": ["vllm", "serve", "m", "--port"],
    "vllm api_server": ["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "m", "--port"],
    "sglang serve": ["sglang", "serve", "--model-path", "m", "--enable-metrics", "--port"],
    "sglang launch_server": [
        "python3",
        "-m",
        "sglang.launch_server",
        "--model-path",
        "m",
        "--enable-metrics",
        "--port",
    ],
    "entry point": [],
}


@pytest.mark.parametrize("how", STARTS)
def test_the_standin_starts_as_an_engine_does(
    images: dict[str, Image], roots: dict[str, Path], how: str, tmp_path: Path
) -> None:
    port = free_port()
    image = images["standin"]
    argv = STARTS[how] or [*image.config["config"]["Entrypoint"], "--engine", "vllm", "--model", "m", "--port"]
    with engine(tmp_path / "c", roots["standin"], [*argv, str(port)], environment(image)) as container:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/completions",
            json.dumps({"model": "m", "prompt": "hello", "max_tokens": 2}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] == 2
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            page = answer.read().decode()
        prefix = "sglang:" if "sglang" in how else "vllm:"
        assert f"{prefix}num_requests_running{{" in page or f"{prefix}num_running_reqs{{" in page
        assert 'model_name="m"' in page
        # An engine's image without the agent: the exec of the hook fails.
        assert container.exec("python3", "-ISB", LOCATION, "--version").returncode != 0


def test_the_hook_runs_in_an_unmodified_engine_image(
    images: dict[str, Image], roots: dict[str, Path], tmp_path: Path
) -> None:
    """The carrier as an image volume: read-only, at the tree's place."""
    port = free_port()
    argv = ["vllm", "serve", "m", "--port", str(port)]
    mounts = [bind(roots["agent"], LOCATION)]
    with engine(tmp_path / "c", roots["standin"], argv, environment(images["standin"]), mounts) as container:
        url = f"http://127.0.0.1:{port}/metrics"
        hook = container.exec("python3", "-ISB", LOCATION, "hook", "--engine", "vllm", "--url", url, "--grace", "30")
        assert (hook.returncode, hook.stdout) == (0, ""), hook.stderr
        assert "outcome idle" in container.log.read_text() + hook.stderr
        check = container.exec(f"{LOCATION}/bin/drainagent", "check", "--json")
        assert json.loads(check.stdout)["url"] == url
        assert json.loads(check.stdout)["verdict"] == "idle"


def test_the_baked_in_agent_is_on_the_path(images: dict[str, Image], roots: dict[str, Path], tmp_path: Path) -> None:
    port = free_port()
    image = images["standin-agent"]
    argv = ["python3", "-m", "sglang.launch_server", "--enable-metrics", "--port", str(port)]
    with engine(tmp_path / "c", roots["standin-agent"], argv, environment(image)) as container:
        check = container.exec("drainagent", "check", "--json")
        assert json.loads(check.stdout)["engine"] == "SGLang"


def test_the_carried_interpreter_runs_as_an_image_volume(roots: dict[str, Path], tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(roots["standin"] / "licenses", bare / "licenses")
    argv = [f"{LOCATION}/python/bin/python3", "-ISB", LOCATION, "gauges"]
    ended = Container(tmp_path / "c", bare, argv, mounts=[bind(roots["agent-python"], LOCATION)]).run()
    assert ended.returncode == 0, ended.stderr
    assert "vllm:num_requests_running" in ended.stdout
