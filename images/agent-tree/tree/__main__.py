"""The agent from its folder: ``python3 -ISB /opt/drainagent hook ...``. Python puts that folder first on the path."""

import sys

if __name__ == "__main__":
    # A hook goes on all the same: on an older Python it waits blind until G - 5 and then says what failed.
    if sys.version_info < (3, 10) and sys.argv[1:2] != ["hook"]:
        sys.exit(f"drainagent needs Python 3.10 or newer, and this is {sys.version.split()[0]}")
    from drainagent.__main__ import main

    main()
