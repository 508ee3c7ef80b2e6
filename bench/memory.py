"""How much resident memory a server takes, and of what kind, beside genai's pipeline in a process
of its own with a KV cache of the same size.

The first table is of whole processes that have answered a short and a long prompt. The server has
been started before, so that its kernels are prepared, and is given a moment to see to its memory.
The second table is of what the engine adds to a process, one after another.

    python -m bench.memory MODEL_DIR
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.common.arguments import model_directory
from bench.common.genai_process import genai_process
from bench.common.report import machine, table
from bench.start import started_server

_SETTLING: Final = 3.0
"""Seconds in which an idle server has committed some of its cache and given back what it can."""

_MB: Final = 1e6
_WEIGHTS, _PACKED = "the weights' file", "packed weights"
_FILES, _REST = "libraries and other files", "anonymous"
_WEIGHT_FILES = {"_model.bin": _WEIGHTS, "/weights.bin": _PACKED}


def resident(pid: int | str = "self") -> Counter[str]:
    """Returns the resident bytes of a process by the kind of their mapping."""
    sizes: Counter[str] = Counter()
    kind = _REST
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        fields = line.split(None, 5)
        if not fields[0].endswith(":"):
            name = fields[5] if len(fields) > 5 else ""
            is_file = name.startswith("/")
            kind = _FILES if is_file else _REST
            for end, own in _WEIGHT_FILES.items():
                kind = own if name.endswith(end) else kind
        elif fields[0] == "Rss:":
            sizes[kind] += 1024 * int(fields[1])
        elif fields[0] == "Anonymous:" and kind == _FILES:  # what libraries have written
            sizes[kind] -= 1024 * int(fields[1])
            sizes[_REST] += 1024 * int(fields[1])
    return sizes


def compare(model_dir: Path, cache_size: int, flags: Sequence[str]) -> None:
    with genai_process(model_dir, cache_size) as process:
        theirs = resident(process.pid)
    with tempfile.TemporaryDirectory() as caches:
        with started_server(model_dir, cache_size, Path(caches), flags, has_kernels=True):
            pass
        with started_server(model_dir, cache_size, Path(caches), flags) as server:
            time.sleep(_SETTLING)
            ours = resident(server.pid)
    kinds = (_WEIGHTS, _PACKED, _FILES, _REST)
    rows = [[kind, ours[kind] / _MB, theirs[kind] / _MB] for kind in kinds]
    totals = ours.total(), theirs.total()
    print(
        table(
            ("MB resident", "fastovms", "genai", "ratio"),
            [
                *([kind, f"{a:.0f}", f"{b:.0f}", ""] for kind, a, b in rows),
                ["in all", *(f"{total / _MB:.0f}" for total in totals), totals[0] / totals[1]],
            ],
        )
    )


def trace(model_dir: Path) -> None:
    """Prints what this process grows by as it makes an engine's model ready."""
    rows: list[list[object]] = []
    before: Counter[str] = Counter()

    def note(stage: str) -> None:
        after = resident()
        grown = {kind: (after[kind] - before[kind]) / _MB for kind in (_WEIGHTS, _FILES, _REST)}
        rows.append([stage, *(f"{size:.0f}" for size in grown.values())])
        before.clear()
        before.update(after)

    import fastovms.app.loading  # noqa: F401 - all that a server imports
    from fastovms.engine.model.compilation import ExportedModel
    from fastovms.engine.row_functions import forget_compiler, load_kernels
    from fastovms.parts.tuning.measurement import MeasuredStep, inputs_of
    from fastovms.system.memory import find_trim

    note("Python and imports")
    load_kernels()
    forget_compiler()
    note("numba's kernels")
    files = ExportedModel(model_dir)
    note("graph read and rewritten")
    _, model = files.compile(files.choices)
    note("graph compiled")
    find_trim()()
    note("what that has freed")
    model.allocate_cache(2**30 // model.bytes_per_block)
    for num_tokens, name in ((1, "one token"), (5, "five tokens"), (64, "64 tokens")):
        model.infer(inputs_of(MeasuredStep(1, 0, num_tokens), model.block_size))
        note(f"weights laid out for {name}")
    model.forget_files()
    note("what was read of the file given back")
    while model.commit_ahead(0):
        pass
    note("the KV cache, committed ahead")
    print(table(("MB added by", _WEIGHTS, _FILES, _REST), rows))


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.memory", description=__doc__)
    parser.add_argument("model_dir", type=model_directory)
    parser.add_argument("--cache-size", type=int, default=1, help="of the KV cache, in GB")
    parser.add_argument("--serve-flag", action="append", default=[], metavar="FLAG")
    parser.add_argument("--trace", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.trace:
        trace(arguments.model_dir)
        return
    print(machine(), flush=True)
    compare(arguments.model_dir, arguments.cache_size, arguments.serve_flag)
    command = [sys.executable, "-m", "bench.memory", "--trace", str(arguments.model_dir)]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
