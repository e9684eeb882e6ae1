"""What both fuzzers share: starting atheris with seeds, a dictionary and an own folder for what it finds."""

from __future__ import annotations

import importlib
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path


def fuzz(
    name: str,
    check: Callable[[bytes], None],
    seeds: Callable[[], Sequence[bytes]],
    dictionary: Sequence[bytes],
    instrumented: Sequence[str],
    *imported: str,
) -> None:
    """Run ``check`` on inputs until it raises or libFuzzer's own arguments (``sys.argv``) end it.

    ``instrumented``: modules whose branches guide the fuzzer; nothing may import them earlier. ``seeds``: the first
    inputs. ``imported``: other modules that ``check`` needs, imported before the first input and not on its time.
    """
    try:
        import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        version = ".".join(map(str, sys.version_info[:2]))
        print(f"fuzz_{name}: skipped: atheris is not installed for this Python ({version})")
        raise SystemExit(0) from None
    with atheris.instrument_imports(include=list(instrumented)):
        for module in instrumented:
            importlib.import_module(module)
    for module in imported:
        importlib.import_module(module)
    folder = Path(tempfile.mkdtemp(prefix=f"drainagent-fuzz-{name}-"))
    corpus = folder / "corpus"
    corpus.mkdir()
    for index, seed in enumerate(seeds()):
        (corpus / f"seed-{index:03d}").write_bytes(seed)
    words = folder / "dictionary"
    words.write_text("".join('"' + "".join(f"\\x{byte:02x}" for byte in word) + '"\n' for word in dictionary))
    given = sys.argv[1:]
    defaults = ["-max_len=4096", "-timeout=10", "-rss_limit_mb=1024", "-print_final_stats=1", "-verbosity=0"]
    if not any(one.startswith(("-max_total_time", "-runs")) for one in given):
        defaults.append("-max_total_time=60")
    print(f"fuzz_{name}: inputs that fail are kept in {folder}", flush=True)
    own = [*defaults, f"-dict={words}", f"-artifact_prefix={folder}/"]
    # A file given is an input to run once; a corpus of our own would make it a folder to fuzz from.
    inputs = [] if any(not one.startswith("-") for one in given) else [str(corpus)]
    atheris.Setup([sys.argv[0], *own, *given, *inputs], check)
    atheris.Fuzz()
