"""The tree: the same bytes everywhere, runs on every Python here, shares nothing with what is around it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import imagekit
import pytest
import trustme
from imagekit import LOCATION, facts, listing, read_only, run

from drainagent.catalogue import VLLM
from drainagent.workstation.standin import Settings, StandIn

VERSIONS = ("3.10", "3.11", "3.12", "3.13")
#: Names that the agent, its dependencies or the interpreter itself import.
IMPORTED = ("click", "h11", "drainagent", "sitecustomize", "usercustomize", "json", "socket", "ssl", "typing", "runpy")


def interpreter(version: str) -> Path:
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for candidate in (f"python{version}", *map(str, sorted(pyenv.glob(f"{version}.*/bin/python")))):
        if shutil.which(candidate) is None:
            continue
        found = run([candidate, "-ISc", "import sys; print(sys.executable, *sys.version_info[:2])"], os.environ)
        if found.returncode == 0 and found.stdout.split()[1:] == version.split("."):
            return Path(found.stdout.split()[0])
    pytest.skip(f"no Python {version} is here")


@pytest.fixture(params=VERSIONS)
def python(request: pytest.FixtureRequest) -> Path:
    return interpreter(request.param)


@pytest.mark.parametrize(("kind", "options"), [("tree", []), ("python_tree", ["--with-python"])])
def test_same_bytes_in_another_folder_at_another_time(
    kind: str, options: list[str], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    before: Path = request.getfixturevalue(kind)
    copy = tmp_path / "elsewhere"
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("drainagent", "images"):
        shutil.copytree(imagekit.REPOSITORY / name, copy / name, ignore=ignored)
    shutil.copyfile(imagekit.REPOSITORY / "LICENSE", copy / "LICENSE")
    for path in copy.rglob("*"):
        os.utime(path, (1, 1))
    (copy / "build").symlink_to(imagekit.REPOSITORY / "build")  # what was fetched
    environment = {**os.environ, "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "LC_ALL": "C"}
    again = tmp_path / "out" / before.name
    imagekit.build_tree(again, *options, repository=copy, cwd=tmp_path, umask=0o077, env=environment)
    assert listing(again) == listing(before)
    tars = [folder.with_name(f"{folder.name}.tar").read_bytes() for folder in (again, before)]
    assert tars[0] == tars[1]
    assert {path.stat().st_mtime for path in before.rglob("*")} == {1767225600.0}


def test_the_epoch_can_be_given(tmp_path: Path) -> None:
    imagekit.build_tree(tmp_path / "tree", env={**os.environ, "SOURCE_DATE_EPOCH": "86400"})
    assert {path.stat().st_mtime for path in (tmp_path / "tree").rglob("*")} == {86400.0}


def test_is_no_larger_than_12_mib(tree: Path) -> None:
    assert sum(path.stat().st_size for path in tree.rglob("*") if path.is_file()) <= 12 * 2**20


@pytest.mark.parametrize("kind", ["tree", "python_tree"])
def test_the_manifest_lists_every_file_but_itself(kind: str, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(kind)
    lines = [line.split(" ", 2) for line in (folder / "manifest").read_text().splitlines()]
    found = {name: (digest, int(mode, 8)) for digest, mode, name in lines}
    there = {name: entry for name, entry in listing(folder).items() if entry[0] != "folder" and name != "manifest"}
    assert {name: (entry[2], entry[1]) for name, entry in there.items()} == found
    assert list(found) == sorted(found)
    assert all(kind == "file" and mode & 0o022 == 0 for kind, mode, _ in there.values())


def test_what_is_in_it(tree: Path) -> None:
    names = {path.name for path in tree.iterdir()}
    assert names - {"__pycache__"} == {
        "__main__.py", "drainagent", "h11", "click", "bin", "licenses", "manifest", "build.json"
    }  # fmt: skip
    assert not (tree / "drainagent" / "workstation").exists()
    assert {path.name for path in (tree / "licenses").iterdir()} == {"drainagent", "click", "h11"}
    assert set(facts(tree)["dependencies"]) == {"click", "h11"}


def test_bytecode_is_whole_unchecked_and_names_the_place(tree: Path, python: Path) -> None:
    """Else a read-only root pays for it at each start."""
    look = (
        "import importlib.util, marshal, pathlib, sys\n"
        "root = pathlib.Path(sys.argv[1])\n"
        "for path in root.rglob('*.py'):\n"
        "    data = pathlib.Path(importlib.util.cache_from_source(str(path))).read_bytes()\n"
        "    assert data[:4] == importlib.util.MAGIC_NUMBER and int.from_bytes(data[4:8], 'little') == 1, path\n"
        "    name = marshal.loads(data[16:]).co_filename\n"
        f"    assert name == '{LOCATION}/' + str(path.relative_to(root)), name\n"
    )
    ended = run([python, "-ISB", "-c", look, tree])
    assert ended.returncode == 0, ended.stderr


def test_a_missing_python_is_said(tmp_path: Path) -> None:
    nowhere = {"PATH": str(tmp_path), "PYENV_ROOT": str(tmp_path), "HOME": str(tmp_path)}
    ended = run([sys.executable, imagekit.BUILD, "--output", tmp_path / "tree", "--require-all"], nowhere)
    assert (ended.returncode, (tmp_path / "tree").exists()) == (1, False)
    assert ended.stderr.startswith("agent-tree: no Python 3.10, 3.11, 3.12, 3.13 is here")
    ended = run([sys.executable, imagekit.BUILD, "--output", tmp_path / "tree"], nowhere)
    assert (ended.returncode, facts(tmp_path / "tree")["bytecode"]) == (0, {})
    assert "NO PYTHON 3.10, 3.11, 3.12, 3.13 IS HERE" in ended.stderr


def hostile(folder: Path, version: str) -> dict[str, str]:
    """An environment and a working directory (``folder``) in which anything foreign that is imported leaves a mark."""
    users = folder / ".local" / "lib" / f"python{version}" / "site-packages"
    users.mkdir(parents=True)
    for place in (folder, users):
        for name in IMPORTED:
            (place / f"{name}.py").write_text(f"open({str(folder / 'imported')!r}, 'a').write({name!r})\n")
    (users / "mark.pth").write_text(f"import sys; open({str(folder / 'imported')!r}, 'a').write('pth')\n")
    return {
        "HOME": str(folder),
        "PYTHONPATH": str(folder),
        "PYTHONHOME": str(folder),
        "PYTHONSTARTUP": str(folder / "click.py"),
        "PYTHONUSERBASE": str(folder / ".local"),
        "PYTHONOPTIMIZE": "2",
        "PYTHONPYCACHEPREFIX": str(folder / "cache"),
        "PYTHONINSPECT": "1",
        "PYTHONWARNINGS": "error",
        "LC_ALL": "nonsense",
    }


def test_runs_read_only_and_imports_nothing_foreign(tree: Path, python: Path, tmp_path: Path) -> None:
    version = run([python, "-ISc", "import sys; print('%d.%d' % sys.version_info[:2])"]).stdout.strip()
    environment = hostile(tmp_path, version)
    before = listing(tree)
    with StandIn(Settings(engine=VLLM)) as engine:
        check = ["check", "--json", "--engine", "vllm", "--url", f"{engine.url}/metrics"]
        for env in ({}, environment):
            for arguments in (check, ["--version"], ["gauges", "--json"], ["completion", "fish"], ["hook", "--help"]):
                command = read_only(tree, [python, "-v", "-ISB", LOCATION, *arguments])
                ended = run(command, env, cwd=tmp_path)
                assert ended.returncode == 0, ended.stderr[-2000:]
                if arguments is check:
                    assert json.loads(ended.stdout)["verdict"] == "idle"
                loaded = [line.split("'")[1] for line in ended.stderr.splitlines() if line.startswith("# code object")]
                stdlib = str(python.resolve().parents[1] / "lib")
                ours = [path for path in loaded if not path.startswith(stdlib)]
                assert f"{LOCATION}/drainagent/__pycache__/cli.cpython-{version.replace('.', '')}.pyc" in ours
                assert all(path.startswith(f"{LOCATION}/") and path.endswith(".pyc") for path in ours), ours
    assert not (tmp_path / "imported").exists()
    assert not (tmp_path / "cache").exists()
    assert listing(tree) == before


def test_hooks_run_read_only_on_every_python(tree: Path, tmp_path: Path) -> None:
    """At once, since each takes six seconds."""
    environments = {}
    for version in facts(tree)["bytecode"]:
        (tmp_path / version).mkdir()
        environments[version] = hostile(tmp_path / version, version)
    with StandIn(Settings(engine=VLLM)) as engine:
        hook = [LOCATION, "hook", "--engine", "vllm", "--url", f"{engine.url}/metrics", "--grace", "30"]
        started = [
            subprocess.Popen(
                read_only(tree, [interpreter(version), "-ISB", *hook]),
                env=environment, cwd=tmp_path / version, stderr=subprocess.PIPE, text=True,
            )
            for version, environment in environments.items()
        ]  # fmt: skip
        for process in started:
            _, log = process.communicate()
            assert process.returncode == 0, log
            assert "outcome idle" in log
    assert not list(tmp_path.glob("*/imported"))


def test_leaves_no_file_in_a_folder_that_could_be_written(tree: Path, python: Path, tmp_path: Path) -> None:
    copy = tmp_path / "tree"
    shutil.copytree(tree, copy)
    for cache in copy.rglob("__pycache__"):
        shutil.rmtree(cache)
    before = listing(copy)
    assert run([python, "-ISB", copy, "gauges"]).returncode == 0
    assert listing(copy) == before


@pytest.mark.parametrize("command", ["demo", "plan"])
def test_a_command_that_it_leaves_out_is_one_sentence(tree: Path, command: str) -> None:
    ended = run([sys.executable, "-ISB", tree, command])
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert ended.stderr.startswith(f"Error: {command} is not in the agent")


def test_help_names_only_what_is_there(tree: Path) -> None:
    ended = run([sys.executable, "-ISB", tree, "--help"])
    assert (ended.returncode, ended.stderr) == (0, "")
    listed = ended.stdout.partition("Commands:\n")[2].splitlines()
    names = {line.split()[0] for line in listed if line.startswith("  ") and line[2] != " "}
    assert names == {"hook", "check", "gauges", "completion"}


def test_the_program_for_people_is_found_by_a_link(tree: Path, tmp_path: Path) -> None:
    link = tmp_path / "bin" / "drainagent"
    link.parent.mkdir()
    link.symlink_to(f"{LOCATION}/bin/drainagent")
    path = f"{Path(sys.executable).resolve().parent}:/usr/bin:/bin"
    (tmp_path / "click.py").write_text("raise SystemExit('imported')\n")
    ended = run(read_only(tree, [link, "--version"]), {"PATH": path, "PYTHONPATH": str(tmp_path)}, cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == f"drainagent, version {facts(tree)['agent']}\n"


@pytest.mark.parametrize("version", ["3.8", "3.9"])
def test_an_older_python_is_said(tree: Path, version: str) -> None:
    ended = run([interpreter(version), "-ISB", tree, "check"])
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"drainagent needs Python 3.10 or newer, and this is {version}.")
    assert ended.stderr.count("\n") == 1


# The variant with an interpreter, in a root folder that holds nothing else: no libc, no /proc, no /etc.


@pytest.fixture(scope="module")
def bare_root(python_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("root")
    root.chmod(0o755)
    shutil.copytree(python_tree, root / LOCATION.lstrip("/"))
    return root


OWN = f"{LOCATION}/python/bin/python3"


def chrooted(root: Path, *argv: str) -> list[str]:
    return ["/usr/sbin/chroot", f"--userspec={imagekit.NOBODY}:{imagekit.NOBODY}", str(root), *argv]


def test_own_interpreter_needs_nothing_of_the_image(bare_root: Path) -> None:
    for arguments in (["--version"], ["gauges"], ["completion", "zsh"], ["--help"], ["hook", "--help"]):
        for program in ([OWN, "-ISB", LOCATION], [f"{LOCATION}/bin/drainagent"]):
            ended = run(chrooted(bare_root, *program, *arguments))
            assert ended.returncode == 0, ended.stderr


def test_own_interpreter_imports_every_module_that_it_carries(bare_root: Path) -> None:
    """What was left out is then missed by none of them."""
    look = (
        "import importlib, os, sys\n"
        f"root = '{LOCATION}/python/lib/python3.11'\n"
        "for folder, _, names in os.walk(root):\n"
        "    for name in names:\n"
        "        if name.endswith(('.py', '.so')):\n"
        "            module = os.path.relpath(os.path.join(folder, name), root).split('.')[0].replace('/', '.')\n"
        "            importlib.import_module(module.removeprefix('lib-dynload.').removesuffix('.__init__'))\n"
        "print(len(sys.modules))\n"
    )
    ended = run(chrooted(bare_root, OWN, "-ISBc", look))
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > 100


def test_own_interpreter_takes_no_library_of_the_image(bare_root: Path) -> None:
    """An engine's image sets LD_LIBRARY_PATH, for CUDA."""
    bogus = bare_root / "usr" / "lib"
    bogus.mkdir(parents=True)
    for library in (bare_root / LOCATION.lstrip("/") / "python" / "lib").glob("*.so*"):
        (bogus / library.name).write_bytes(b"no library")
    import_all = "import ssl, json, socket; print(ssl.OPENSSL_VERSION)"
    ended = run(chrooted(bare_root, OWN, "-ISBc", import_all), {"LD_LIBRARY_PATH": "/usr/lib:/usr/lib64"})
    assert (ended.returncode, ended.stderr) == (0, "")


def test_own_interpreter_runs_hooks_with_and_without_tls(bare_root: Path, tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    pem = tmp_path / "pem"
    pem.write_bytes(certificate.private_key_and_cert_chain_pem.bytes())
    tls = Settings(engine=VLLM, ssl_certfile=str(pem), ssl_keyfile=str(pem))
    with StandIn(Settings(engine=VLLM)) as plain, StandIn(tls) as encrypted:
        processes = []
        for url in (plain.url, encrypted.url):
            hook = ["hook", "--engine", "vllm", "--url", f"{url}/metrics", "--grace", "30", "--log-format", "json"]
            command = chrooted(bare_root, OWN, "-ISB", LOCATION, *hook, "--gauges-only")
            processes.append(subprocess.Popen(command, env={}, stderr=subprocess.PIPE, text=True))
        for process in processes:
            _, log = process.communicate()
            assert (process.returncode, json.loads(log.splitlines()[-1])["outcome"]) == (0, "idle"), log


def test_own_interpreter_says_where_it_is_from(python_tree: Path) -> None:
    python = facts(python_tree)["python"]
    assert "libc6" in python["packages"]
    for package, about in python["packages"].items():
        [found] = [path for path in _fetched(python["architecture"]) if path.name.startswith(f"{package}_")
                   and hashlib.sha256(path.read_bytes()).hexdigest() == about["sha256"]]  # fmt: skip
        assert found.exists()
        assert (python_tree / "licenses" / package / "copyright").stat().st_size > 0


def _fetched(architecture: str) -> list[Path]:
    return list((imagekit.REPOSITORY / "build" / "debian" / architecture).glob("*.deb"))


@pytest.mark.skipif(shutil.which("qemu-aarch64-static") is None, reason="qemu-user-static is not here")
def test_own_interpreter_runs_on_arm64(tmp_path: Path) -> None:
    qemu = shutil.which("qemu-aarch64-static")
    assert qemu is not None
    root = tmp_path / "root"
    imagekit.build_tree(root / LOCATION.lstrip("/"), "--with-python", "--arch", "arm64")
    shutil.copy2(qemu, root / "qemu")
    root.chmod(0o755)
    for arguments in (["--version"], ["check", "--url", "https://127.0.0.1:1/metrics"]):
        ended = run(chrooted(root, "/qemu", OWN, "-ISB", LOCATION, *arguments))
        assert ended.returncode == (0 if arguments == ["--version"] else 3), ended.stderr
