"""Where drainagent-operator begins: says what to install when the operator's dependencies are not there."""

from __future__ import annotations

import sys

#: What the extra `operator` brings, by the names they are imported under.
EXTRA = frozenset({"celpy", "jsonschema", "pydantic", "pydantic_core", "re2"})


def main() -> None:
    """Entry point of ``drainagent-operator`` and ``python -m operator_glue``."""
    try:
        from operator_glue.cli import main as run
    except ModuleNotFoundError as error:
        if error.name not in EXTRA:
            raise
        print(
            f"drainagent-operator needs {error.name}, which is not installed: pip install 'drainagent[operator]'",
            file=sys.stderr,
        )
        sys.exit(2)
    run(sys.argv[1:])


if __name__ == "__main__":
    main()
