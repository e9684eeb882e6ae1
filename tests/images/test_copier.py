"""The carrier's copier: whatever DEST holds before, afterwards it holds what the manifest lists."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from imagekit import NOBODY, carrier_folder, listing, run


@pytest.fixture(scope="module")
def carrier(tree: Path, copier: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image's folder, whose `copy` is run. Tests that change it take ``own_carrier``."""
    return carrier_folder(tree, copier, tmp_path_factory.mktemp("carrier") / "root")


@pytest.fixture
def own_carrier(carrier: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(carrier, tmp_path / "carrier"))


@pytest.fixture
def dest(tmp_path: Path) -> Path:
    folder = tmp_path / "dest"
    folder.mkdir()
    return folder


def copied(carrier: Path, dest: Path) -> str:
    """Runs the copier, which must succeed; its line."""
    ended = run([carrier / "copy", dest])
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


def failed(carrier: Path, dest: Path) -> str:
    """Runs the copier, which must fail; its sentence."""
    ended = run([carrier / "copy", dest])
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.count("\n") == 1
    assert ended.stderr.startswith("copy: ")
    return ended.stderr


def assert_whole(dest: Path, tree: Path) -> None:
    assert listing(dest) == listing(tree)


def test_copies_all_with_modes_and_says_so_in_one_line(carrier: Path, tree: Path, tmp_path: Path) -> None:
    dest = tmp_path / "made" / "anew"
    command = ["sh", "-c", 'umask 077; exec "$0" "$1"', str(carrier / "copy"), str(dest)]
    ended = run(command)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert_whole(dest, tree)
    files = [path for path in tree.rglob("*") if path.is_file()]
    version = json.loads((tree / "build.json").read_text())["agent"]
    begin = (
        f"copy: drainagent {version}: {len(files)} files, {sum(path.stat().st_size for path in files)} bytes in {dest}"
    )
    assert ended.stdout.startswith(begin)
    assert ended.stdout.endswith(" ms\n")
    assert ended.stdout.count("\n") == 1


def test_a_second_run_changes_nothing(carrier: Path, tree: Path, dest: Path) -> None:
    copied(carrier, dest)
    copied(carrier, dest)
    assert_whole(dest, tree)


def test_half_a_copy_is_made_whole(carrier: Path, tree: Path, dest: Path, tmp_path: Path) -> None:
    copied(carrier, dest)
    (dest / "manifest").unlink()
    shutil.rmtree(dest / "h11")
    (dest / "click" / "core.py").write_text("half")
    (dest / "click" / "core.py.copying").write_text("half")
    (dest / "drainagent" / "hook.py").unlink()
    outside = tmp_path / "outside"
    outside.write_text("mine")
    (dest / "drainagent" / "hook.py.copying").symlink_to(outside)
    (dest / "drainagent" / "cli.py.copying").mkdir()
    (dest / "bin" / "drainagent").chmod(0o600)
    copied(carrier, dest)
    assert_whole(dest, tree)
    assert outside.read_text() == "mine"


def test_an_older_copy_is_replaced_and_what_it_alone_had_is_removed(own_carrier: Path, tree: Path, dest: Path) -> None:
    older = own_carrier / "manifest"
    now = older.read_text()
    for name in ("drainagent/former.py", "former/deep/er.py", "drainagent/kept"):
        path = own_carrier / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    sums = {name: listing(own_carrier)[name][2] for name in ("drainagent/former.py", "former/deep/er.py")}
    older.write_text(now + "".join(f"{digest} 0644 {name}\n" for name, digest in sums.items()))
    copied(own_carrier, dest)
    assert (dest / "former" / "deep" / "er.py").exists()
    (dest / "not-ours").write_text("somebody's")
    older.write_text(now)
    copied(own_carrier, dest)
    assert (dest / "not-ours").read_text() == "somebody's"
    (dest / "not-ours").unlink()
    assert_whole(dest, tree)


def test_an_older_manifest_leads_nowhere_else(carrier: Path, tree: Path, dest: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_text("mine")
    (dest / "link").symlink_to(outside)
    digest = "0" * 64
    for name in ("../outside/mine", str(outside / "mine"), "link/mine", "x/../../outside/mine", ".", "drainagent"):
        (dest / "manifest").write_text(f"{digest} 0644 {name}\n")
        copied(carrier, dest)
        assert (outside / "mine").read_text() == "mine"
    (dest / "link").unlink()
    assert_whole(dest, tree)


def test_folders_files_and_links_in_the_wrong_place_give_way(
    carrier: Path, tree: Path, dest: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (dest / "h11").symlink_to(outside)
    (dest / "click").write_text("a file")
    (dest / "__main__.py" / "deep").mkdir(parents=True)
    (dest / "manifest").mkdir()
    copied(carrier, dest)
    assert_whole(dest, tree)
    assert not list(outside.iterdir())


def test_a_file_that_is_not_as_listed_is_named_and_never_put_in_place(
    own_carrier: Path, carrier: Path, tree: Path, dest: Path
) -> None:
    copied(carrier, dest)
    (own_carrier / "drainagent" / "hook.py").write_text("changed")
    sentence = failed(own_carrier, dest)
    assert f"{own_carrier}/drainagent/hook.py is not what the manifest lists" in sentence
    assert_whole(dest, tree)


def test_a_file_that_is_missing_is_named(own_carrier: Path, dest: Path) -> None:
    (own_carrier / "h11" / "_util.py").unlink()
    assert f"{own_carrier}/h11/_util.py: no such file" in failed(own_carrier, dest)


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "no manifest\n",
        "0123 0644 __main__.py\n",
        f"{'0' * 64} 0644 ../up\n",
        f"{'0' * 64} 0999 __main__.py\n",
        "cut",
    ],
)
def test_a_manifest_that_cannot_be_trusted_copies_nothing(own_carrier: Path, dest: Path, damage: str) -> None:
    text = (own_carrier / "manifest").read_text()
    (own_carrier / "manifest").write_text(text[:-10] if damage == "cut" else damage)
    assert f"{own_carrier}/manifest" in failed(own_carrier, dest)
    assert not list(dest.iterdir())


def test_a_dest_that_cannot_be_written_is_named(carrier: Path) -> None:
    # Below a folder that anybody may enter: pytest's own is root's alone.
    with_root = (
        'mount -t tmpfs tmpfs /mnt && mkdir -m 755 /mnt/dest && cp -a "$1" /mnt/carrier && chmod 755 /mnt/carrier'
    )
    as_nobody = f"exec setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups /mnt/carrier/copy /mnt/dest"
    command = ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-ec", f"{with_root}; {as_nobody}", "sh"]
    ended = run([*command, carrier], {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("copy: ")
    assert "/mnt/dest/" in ended.stderr
    assert ended.stderr.endswith("permission denied\n")


def test_a_full_disk_is_named_and_the_next_run_goes_on(carrier: Path, tree: Path) -> None:
    script = """
        mount -t tmpfs -o size=256k tmpfs /mnt
        "$1/copy" /mnt/dest && exit 9
        find /mnt/dest -name '*.copying' | grep . && exit 8
        mount -o remount,size=64m /mnt
        "$1/copy" /mnt/dest
        diff -r "$2" /mnt/dest
    """
    command = ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-euc", script, "sh"]
    ended = run([*command, carrier, tree], {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.startswith("copy: write /mnt/dest/")
    assert ended.stderr.endswith("no space left on device\n")


def test_killed_in_the_middle_the_next_run_ends_it(carrier: Path, tree: Path, dest: Path) -> None:
    for _ in range(3):
        shutil.rmtree(dest, ignore_errors=True)
        process = subprocess.Popen([carrier / "copy", dest], stdout=subprocess.DEVNULL)
        while process.poll() is None and not (dest / "click").exists():
            pass
        process.kill()
        process.wait()
        copied(carrier, dest)
        assert_whole(dest, tree)


def test_a_folder_that_a_killed_run_left_undone_is_opened(carrier: Path, tree: Path, dest: Path) -> None:
    """Between its making and its mode: another user could not read the agent."""
    (dest / "click").mkdir(parents=True, mode=0o700)
    copied(carrier, dest)
    assert_whole(dest, tree)


@pytest.mark.parametrize("arguments", [[], [""], ["a", "b"]])
def test_wrong_usage(carrier: Path, arguments: list[str]) -> None:
    ended = run([carrier / "copy", *arguments])
    assert (ended.returncode, ended.stderr) == (2, "copy: usage: copy DEST\n")


def test_the_interpreter_is_carried_too(python_tree: Path, copier: Path, tmp_path: Path) -> None:
    folder = carrier_folder(python_tree, copier, tmp_path / "root")
    copied(folder, tmp_path / "dest")
    assert_whole(tmp_path / "dest", python_tree)
