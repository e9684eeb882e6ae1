from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import imagekit
import pytest


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The agent's tree."""
    output = tmp_path_factory.mktemp("tree") / "agent-tree"
    imagekit.build_tree(output)
    return output


@pytest.fixture(scope="session")
def python_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The agent's tree with an interpreter."""
    output = tmp_path_factory.mktemp("python-tree") / "agent-tree-python"
    imagekit.build_tree(output, "--with-python")
    return output


@pytest.fixture(scope="session")
def copier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("copier") / "copy"
    imagekit.build_copier(target)
    return target


@pytest.fixture(scope="session")
def built_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the archives of all five images, and buildah's storage in ``storage``."""
    folder = tmp_path_factory.mktemp("images")
    options: list[str | Path] = ["--any-python", "--root", folder / "storage", "--archive", folder, "all"]
    subprocess.run([imagekit.BUILD_IMAGES, *options], env={**os.environ, "PYTHON": sys.executable}, check=True)
    return folder
