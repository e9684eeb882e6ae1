"""``python3 -m vllm.entrypoints.openai.api_server``: the stand-in."""

import sys

import standin_as

if __name__ == "__main__":
    sys.exit(standin_as.vllm(sys.argv[1:]))
