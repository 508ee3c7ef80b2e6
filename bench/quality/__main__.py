"""What each precision costs: log probabilities of a text of documentation against those of
`--precision exact`, and milliseconds a token at one stream, in turn.

    python -m bench.quality MODEL...

MODEL is a GGUF file or a model directory. All ways to run one are in memory at once. A GGUF file is
also read by llama.cpp's `gguf`, and computed with numpy in f64: that tells whether our reader makes
the right graph of it. On processors without VNNI, where OpenVINO leaves activations in f32, 8-bit
activations are computed in the graph: their cost in exactness shows, that in time does not.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import openvino as ov

from bench.common.report import machine, median, table
from bench.quality.activations import quantize_activations
from bench.quality.reader import check_reader
from fastovms.engine.model import tuning
from fastovms.engine.model.compilation import compile_variants, has_vnni
from fastovms.engine.model.model import ExportedModel, PagedModel
from fastovms.engine.model.quality import Quality, compare
from fastovms.gguf.model_directory import find_gguf, model_directory
from fastovms.system.disk import DiskCache, cache_root
from fastovms.text.tokenizer import Tokenizer

DOCS: Final = Path(__file__).parents[2] / "docs"
_GROUP: Final = "DYNAMIC_QUANTIZATION_GROUP_SIZE"
_CACHE: Final = "KV_CACHE_PRECISION"
_PRECISION: Final = "INFERENCE_PRECISION_HINT"

Takes = Callable[[int, int], bool]


@dataclass(frozen=True)
class Way:
    """A way to run a model.

    Attributes:
        properties: OpenVINO's.
        group_size: activations of 8 bits that share a scale, computed in the graph; 0 = none.
        takes: of which products: see `quantize_activations`.
    """

    properties: dict[str, object] = field(default_factory=dict)
    group_size: int = 0
    takes: Takes = lambda index, num: True


def ways() -> dict[str, Way]:
    """Returns those that make a difference on this machine, by name."""
    found = {"default": Way()}
    if ov.Core().get_property("CPU", _PRECISION) == ov.Type.bf16:
        found["f32"] = Way({_PRECISION: "f32"})
        found["f32, activations too"] = Way({_PRECISION: "f32", _GROUP: "0"})
    for precision in ("f32", "f16", "u8", "u4"):
        found[f"{precision} cache"] = Way({_CACHE: precision})
    if has_vnni():
        for size in (32, 64, 128):
            found[f"activation groups of {size}"] = Way({_GROUP: str(size)})
        return found
    emulated = "8-bit activations"
    for size in (32, 64, 128):
        found[f"{emulated}, groups of {size}"] = Way(group_size=size)
    found[f"{emulated} but in the last matrix"] = Way(group_size=32, takes=_not_last)
    found[f"{emulated} but in the first two layers"] = Way(group_size=32, takes=_not_first)
    found[f"{emulated} but into the residual stream"] = Way(group_size=32, takes=_not_down)
    return found


_MATRICES_OF_LAYER: Final = 7
_DOWN: Final = 6
"""The place in a layer of the product that ends its MLP."""


def _not_last(index: int, num: int) -> bool:
    return index < num - 1


def _not_first(index: int, num: int) -> bool:
    return index >= 2 * _MATRICES_OF_LAYER


def _not_down(index: int, num: int) -> bool:
    return index == num - 1 or index % _MATRICES_OF_LAYER != _DOWN


def load(model_dir: Path, way: Way) -> PagedModel:
    files = ExportedModel(model_dir, properties=way.properties)
    if not way.group_size:
        return files.compile(files.choices)[1]
    graph = files.graph.model.clone()
    if not quantize_activations(graph, way.group_size, way.takes):
        raise ValueError(f"no product has rows of groups of {way.group_size}")
    precisions = files.choices[0]
    variants = compile_variants(ov.Core(), graph, files.device, precisions)
    return PagedModel(variants, device=files.device, precisions=precisions, graph=files.graph)


def read_text(tokenizer: Tokenizer, num_tokens: int, length: int) -> list[list[int]]:
    """Returns documentation in texts of `length` tokens, and prints its hash."""
    pages = "\n".join(path.read_text() for path in sorted(DOCS.glob("*.md")))
    pages = pages[: 8 * num_tokens]
    token_ids = tokenizer.encode(pages, add_special_tokens=False)[:num_tokens]
    digest = hashlib.sha256(tokenizer.decode(token_ids).encode()).hexdigest()[:12]
    print(f"{len(token_ids)} tokens of documentation in texts of {length}, sha256 {digest}")
    begin = tokenizer.encode("")
    step = length - len(begin)
    starts = range(0, len(token_ids) - 1, step)
    return [[*begin, *token_ids[start : start + step]] for start in starts]


def measure(model_dir: Path, texts: Sequence[Sequence[int]], chosen: Sequence[str]) -> str:
    """Returns a table."""
    exact = PagedModel.load(model_dir, exact=True)
    models: dict[str, PagedModel] = {}
    for name, way in ways().items():
        if chosen and not any(part in name for part in chosen):
            continue
        try:
            models[name] = load(model_dir, way)
        except ValueError as error:
            print(f"{name}: {error}", file=sys.stderr)
    qualities = compare(exact, models, texts)
    timed = {"exact": exact, **models}
    case = tuning.DECODES[1]
    times = tuning.measure(timed, [case], time.perf_counter, max_seconds=20, max_rounds=9)
    cells = {"exact": [0.0, 1.0, 0.0, 0.0]}
    for name, quality in qualities.items():
        cells[name] = _cells(quality)
    header = ("", "mean difference", "top-1 agreement", "mean KL", "perplexity", "ms a token")
    rows = [
        (name, f"{a:.5f}", f"{b:.2%}", f"{c:.6f}", f"{d:+.3%}", median(times[name][case]) * 1000)
        for name, (a, b, c, d) in cells.items()
    ]
    return table(header, rows)


def _cells(quality: Quality) -> list[float]:
    return [
        quality.mean_difference,
        quality.agreement,
        quality.mean_divergence,
        quality.perplexity_ratio - 1,
    ]


def main() -> int:
    parser = argparse.ArgumentParser("python -m bench.quality", description=__doc__)
    parser.add_argument("models", metavar="MODEL", type=Path, nargs="+")
    parser.add_argument("-n", "--num-tokens", type=int, default=5000)
    parser.add_argument("-l", "--length", type=int, default=1024, help="tokens of each text")
    parser.add_argument("-w", "--ways", nargs="+", default=[], help="parts of their names")
    parser.add_argument("--check-tokens", type=int, default=96, help="0 = no check of the reader")
    parser.add_argument("--cache-dir", default=None)
    arguments = parser.parse_args()
    cache = DiskCache(cache_root(arguments.cache_dir, os.environ))
    is_right = True
    print(machine())
    with TemporaryDirectory() as scratch:
        for path in arguments.models:
            model_dir = model_directory(path, cache, Path(scratch))
            print(f"\n{path.name}")
            texts = read_text(Tokenizer.load(model_dir), arguments.num_tokens, arguments.length)
            file = find_gguf(path)
            if file is not None and arguments.check_tokens:
                found = check_reader(model_dir, file, texts[0][: arguments.check_tokens])
                is_right &= found.is_right
                print(
                    f"reader {'right' if found.is_right else 'WRONG'}: log probabilities differ by "
                    f"at most {found.worst_difference:.2g}, top-1 agreement {found.agreement:.2%}, "
                    f"{found.num_greedy} greedy tokens are the same"
                )
            print(f"\n{measure(model_dir, texts, arguments.ways)}", flush=True)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
