"""Images of the stock routers for the node: Python and each router's packages, as they are installed on this machine.

``python tests/operator/e2e/router_images.py`` makes and loads them by hand. tests/cluster/engines/setup.sh installs the
routers. No registry of images is asked; the programs are PyPI's.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "cluster"))
sys.path.insert(0, str(Path(__file__).parents[2] / "engines"))

from engines.routers import VERSIONS, routers_dir
from image import Layer, archive
from kube import CLUSTER

#: By the name that a ModelDeployment gives the router: PyPI's, and the module that its program starts.
ROUTERS = {
    "vllm-router": ("vllm-router", "vllm_router.launch_router"),
    "sglang-gateway": ("sglang-router", "sglang_router.launch_router"),
}
#: What no router imports.
_LEFT_OUT = {"pip", "setuptools", "pkg_resources", "site-packages", "test", "idlelib", "ensurepip", "__pycache__"}
_LIBRARIES = "/usr/lib/x86_64-linux-gnu"


def image_of(router: str) -> str:
    package = ROUTERS[router][0]
    return f"localhost/test/{package}:{VERSIONS[package]}"  # type: ignore[index]


def on_the_node() -> None:
    """Those that are not there yet. Half a minute each, once for a cluster."""
    listing = subprocess.run([CLUSTER, "ctr", "images", "ls", "-q"], check=True, capture_output=True, text=True).stdout
    for router in ROUTERS:
        if image_of(router) not in listing.split():
            content = _image(router)
            subprocess.run([CLUSTER, "load", "-"], input=content, check=True, stdout=subprocess.DEVNULL)


def _image(router: str) -> bytes:
    package, module = ROUTERS[router]
    venv = routers_dir() / f"venv-{package}"
    python = (venv / "bin" / "python").resolve()
    home, version = python.parents[1], python.name
    layer = Layer()
    for folder in ("/tmp", "/root"):
        layer.folder(folder, 0o1777 if folder == "/tmp" else 0o755)
    layer.file("/etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n")
    layer.file("/etc/nsswitch.conf", b"hosts: files dns\n")
    layer.copy(f"/python/bin/{version}", python)
    layer.link("/usr/bin/python3", f"/python/bin/{version}")
    _tree(layer, f"/python/lib/{version}", home / "lib" / version)
    _tree(layer, f"/python/lib/{version}/site-packages", venv / "lib" / version / "site-packages")
    start = f"#!/python/bin/{version}\nfrom {module} import main\n\nmain()\n"
    layer.file(f"/usr/bin/{package}", start.encode(), 0o755)
    for library in sorted(
        _libraries([python, *home.glob("lib/*.so*"), *venv.rglob("*.so"), *home.rglob("lib-dynload/*.so")])
    ):
        layer.file(f"/lib/x86_64-linux-gnu/{library.name}", library.read_bytes(), 0o755)
    for library in home.glob("lib/libpython3.*.so.*"):
        layer.file(f"/lib/x86_64-linux-gnu/{library.name}", library.read_bytes(), 0o755)
    layer.file("/lib64/ld-linux-x86-64.so.2", Path("/lib64/ld-linux-x86-64.so.2").read_bytes(), 0o755)
    return archive(
        image_of(router), layer.finish(), entrypoint=[], env=["PYTHONDONTWRITEBYTECODE=1"], user="65532:65532"
    )


def _tree(layer: Layer, target: str, source: Path) -> None:
    layer.folder(target)
    for child in sorted(source.iterdir()):
        if child.name in _LEFT_OUT or child.name.startswith("config-") or child.suffix == ".pth":
            continue
        if child.is_dir() and not child.is_symlink():
            _tree(layer, f"{target}/{child.name}", child)
        elif child.is_file():
            layer.file(f"{target}/{child.name}", child.read_bytes(), 0o755 if child.suffix == ".so" else 0o644)


def _libraries(programs: list[Path]) -> set[Path]:
    """The system's shared libraries that these need; their own ones are beside them."""
    found: set[Path] = set()
    for program in programs:
        done = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
        for line in done.stdout.splitlines():
            path = Path(line.partition("=> ")[2].partition(" (")[0].strip() or "/none")
            if path.is_file() and str(path.parent.resolve()) == _LIBRARIES:
                found.add(path)
    return found


if __name__ == "__main__":
    on_the_node()
