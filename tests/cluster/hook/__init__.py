"""The hook on a real kubelet. README.md says how the suite is put together."""

import sys
from pathlib import Path

# load.py, the clients of the real engines' suite.
sys.path.append(str(Path(__file__).resolve().parents[2] / "engines"))
