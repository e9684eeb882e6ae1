"""Write drainagent/engine_flags.py from the real engines' argument parsers.

    python tests/engines/dump_flags.py

Runs itself inside each engine's venv ($DRAINAGENT_ENGINES/venv-vllm, venv-sglang) and prints one line a flag there.
"""

# mypy: disable-error-code="import-not-found, no-redef"

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ENGINES = Path(os.environ.get("DRAINAGENT_ENGINES") or Path.home() / ".cache/drainagent/engines")
TARGET = Path(__file__).parents[2] / "drainagent" / "engine_flags.py"

HEADER = '''\
"""The flags of both engines' servers, as their own argument parsers declare them. Generated: do not edit.

Written by tests/engines/dump_flags.py from vLLM {vllm} (vllm.entrypoints.launchers.cli_args.make_arg_parser) and
SGLang {sglang} (sglang.srt.server_args.ServerArgs.add_cli_args). An abbreviation is unambiguous only against every
flag of a release, so all of them are here.

One flag a line: how many values it takes (a number, or argparse's "?", "*", "+"), then its spellings. The first is the
name that drainagent.engine_argv knows it by. A spelling that starts with --no- next to one without turns it off.
"""

from __future__ import annotations

VLLM_RELEASE = "{vllm}"
SGLANG_RELEASE = "{sglang}"
'''


def parser_of(engine: str) -> tuple[str, argparse.ArgumentParser]:
    """The release and the server's argument parser; runs inside the engine's venv."""
    if engine == "vllm":
        from vllm import __version__
        from vllm.entrypoints.launchers.cli_args import make_arg_parser
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        return __version__, make_arg_parser(FlexibleArgumentParser())
    from sglang.srt.server_args import ServerArgs
    from sglang.version import __version__

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return __version__, parser


def lines_of(parser: argparse.ArgumentParser) -> list[str]:
    lines = []
    for action in parser._actions:
        if not action.option_strings:
            continue
        values = 1 if action.nargs is None else action.nargs
        # The long name first: vLLM declares some flags short name first.
        spellings = sorted(action.option_strings, key=lambda text: not text.startswith("--"))
        lines.append(" ".join((str(values), *spellings)))
    return sorted(lines, key=lambda line: line.split()[1])


def dump(engine: str) -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the engines log to stdout
    release, parser = parser_of(engine)
    out.write("\n".join((release, *lines_of(parser))) + "\n")
    out.close()


def main() -> None:
    if len(sys.argv) == 2:
        dump(sys.argv[1])
        return
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "SGLANG_USE_CPU_ENGINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    release: dict[str, str] = {}
    flags: dict[str, list[str]] = {}
    for engine in ("vllm", "sglang"):
        python = ENGINES / f"venv-{engine}" / "bin" / "python"
        answer = subprocess.run(
            [str(python), __file__, engine], check=True, env=environment, stdout=subprocess.PIPE, text=True
        ).stdout
        release[engine], *flags[engine] = answer.splitlines()
        release[engine] = release[engine].partition("+")[0]
    with TARGET.open("w") as target:
        target.write(HEADER.format(**release))
        for engine in ("vllm", "sglang"):
            target.write(f'\n{engine.upper()}_FLAGS = """\\\n' + "\n".join(flags[engine]) + '\n"""\n')


if __name__ == "__main__":
    main()
