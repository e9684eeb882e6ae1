"""``python3 -m sglang.launch_server``: the stand-in."""

import sys

import standin_as

if __name__ == "__main__":
    sys.exit(standin_as.sglang(sys.argv[1:]))
