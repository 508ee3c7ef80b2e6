"""What each precision costs: log probabilities of a text of documentation against those of
`--precision exact`, and milliseconds a token at one stream, in turn.

    python -m bench.quality MODEL...

MODEL is a GGUF file or a model directory. All ways to run one are in memory at once. Texts are
computed as prompts are; with the decode kernels, token by token, as answers are. A GGUF file is
also read by llama.cpp's `gguf`, and computed with numpy in f64: that tells whether our reader makes
the right graph of it. On processors without VNNI, where OpenVINO leaves activations in f32, 8-bit
activations are computed in the graph: their cost in exactness shows, that in time does not.

With --genai and --llama-cpp, other engines run the same texts, with their own settings.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import numpy as np
import openvino as ov

from bench.common.model_wrapper import ModelWrapper
from bench.common.report import machine, median, table
from bench.quality.activations import quantize_activations
from bench.quality.peers import PeerQuality, genai_quality, llama_quality
from bench.quality.reader import check_reader
from bench.steps import use_kernels
from fastovms.engine.kernels.compiler import find_instructions
from fastovms.engine.model.compilation import ExportedModel, compile_variants, has_vnni, load_model
from fastovms.engine.model.model import Model, PagedModel, RawLogits, as_float32
from fastovms.engine.model.step_inputs import StepInputs, StepLayout
from fastovms.gguf.model_directory import find_gguf, model_directory
from fastovms.parts.tuning import measurement as tuning
from fastovms.parts.tuning.quality import Quality, compare
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
        decodes: whether the decode kernels compute it, token by token.
    """

    properties: dict[str, object] = field(default_factory=dict)
    group_size: int = 0
    takes: Takes = lambda index, num: True
    decodes: bool = False


def ways() -> dict[str, Way]:
    """Returns those that make a difference on this machine, by name."""
    found = {"default": Way()}
    if find_instructions() is not None:
        found["decode kernels"] = Way(decodes=True)
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


class TokenByToken(ModelWrapper):
    """Computes each token of a single text in a step of its own."""

    def infer(self, inputs: StepInputs) -> RawLogits:
        past = int(inputs.past_lens[0])
        token_ids = array("q", [0] * past + inputs.input_ids.tolist())
        blocks = array("i", inputs.block_indices.tolist())
        rows = []
        for start in range(past, len(token_ids)):
            layout = StepLayout(self.block_size)
            num_blocks = start // self.block_size + 1
            last = layout.add(token_ids, start, start + 1, blocks[:num_blocks])
            step = layout.finish(array("q", (last,)))
            rows.append(as_float32(super().infer(step)).copy())
        return np.concatenate(rows)


def load(model_dir: Path, way: Way) -> PagedModel:
    files = ExportedModel(model_dir, properties=way.properties)
    if not way.group_size:
        model = files.compile(files.choices)[1]
        if way.decodes:
            use_kernels(model)
        return model
    graph = files.graph.model.clone()
    if not quantize_activations(graph, way.group_size, way.takes):
        raise ValueError(f"no product has rows of groups of {way.group_size}")
    precisions = files.choices[0]
    variants = compile_variants(ov.Core(), graph, files.device, precisions)
    return PagedModel(variants, device=files.device, precisions=precisions, graph=files.graph)


class Texts(NamedTuple):
    """Documentation, as a whole and in texts of tokens."""

    page: str
    token_ids: list[list[int]]


def read_text(tokenizer: Tokenizer, num_tokens: int, length: int) -> Texts:
    """Returns documentation in texts of `length` tokens, and prints its hash."""
    pages = "\n".join(path.read_text() for path in sorted(DOCS.glob("*.md")))
    pages = pages[: 8 * num_tokens]
    token_ids = tokenizer.encode(pages, add_special_tokens=False)[:num_tokens]
    page = tokenizer.decode(token_ids)
    digest = hashlib.sha256(page.encode()).hexdigest()[:12]
    print(f"{len(token_ids)} tokens of documentation in texts of {length}, sha256 {digest}")
    begin = tokenizer.encode("")
    step = length - len(begin)
    starts = range(0, len(token_ids) - 1, step)
    return Texts(page, [[*begin, *token_ids[start : start + step]] for start in starts])


_DECODE: Final = tuning.DECODES[1]
_CROWD: Final = tuning.DECODES[8]
_PREFILL: Final = tuning.MeasuredStep(1, 0, 256)


def measure(
    model_dir: Path, texts: Sequence[Sequence[int]], chosen: Sequence[str], clock: Clock
) -> dict[str, Cells]:
    """Returns the cells of a table after the first one, which is the key.

    Args:
        chosen: parts of the names of the ways; empty = all.
    """
    exact = load_model(model_dir, exact=True, properties=clock.properties)
    models: dict[str, PagedModel] = {}
    readers: dict[str, Model] = {}
    for name, way in ways().items():
        if chosen and not any(part in name for part in chosen):
            continue
        way.properties.update(clock.properties)
        try:
            models[name] = load(model_dir, way)
        except ValueError as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        readers[name] = TokenByToken(models[name]) if way.decodes else models[name]
    cells: dict[str, Cells] = {"exact": _cells(PeerQuality(0.0, 1.0, 0.0, 1.0))}
    cells |= {name: _cells(found) for name, found in compare(exact, readers, texts).items()}
    timed = {"exact": exact, **models}
    cases = (_DECODE, _CROWD, _PREFILL)
    times = tuning.measure(timed, cases, clock.read, max_seconds=clock.seconds, max_rounds=9)
    for name, found in times.items():
        cells[name] += [
            f"{median(found[case]) * 1000:.1f}" if found[case] else "-" for case in cases
        ]
    return cells


class Clock(NamedTuple):
    """How steps are timed.

    Attributes:
        read: returns seconds.
        seconds: for all rounds.
        properties: OpenVINO's.
    """

    read: Callable[[], float]
    seconds: float
    properties: dict[str, object]


Cells = list[str]
HEADER: Final = (
    "",
    "mean difference",
    "top-1 agreement",
    "mean KL",
    "perplexity",
    "ms: 1 token",
    "8 tokens",
    "prompt of 256",
)


def _cells(quality: Quality | PeerQuality) -> Cells:
    difference, divergence = quality.mean_difference, quality.mean_divergence
    return [
        "-" if difference is None else f"{difference:.5f}",
        f"{quality.agreement:.2%}",
        "-" if divergence is None else f"{divergence:.6f}",
        f"{quality.perplexity_ratio - 1:+.3%}",
    ]


def main() -> int:
    parser = argparse.ArgumentParser("python -m bench.quality", description=__doc__)
    parser.add_argument("models", metavar="MODEL", type=Path, nargs="+")
    parser.add_argument("-n", "--num-tokens", type=int, default=5000)
    parser.add_argument("-l", "--length", type=int, default=1024, help="tokens of each text")
    parser.add_argument("-w", "--ways", nargs="+", default=[], help="parts of their names")
    parser.add_argument("--check-tokens", type=int, default=96, help="0 = no check of the reader")
    parser.add_argument("--genai", type=int, metavar="N", help="genai, every N tokens")
    parser.add_argument("--llama-cpp", type=Path, metavar="DIR", help="of its programs")
    parser.add_argument("--seconds", type=float, default=60, help="of steps that are timed")
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="time steps of one thread by the processor's clock, for machines that are not quiet",
    )
    parser.add_argument("--cache-dir", default=None)
    arguments = parser.parse_args()
    cache = DiskCache(cache_root(arguments.cache_dir, os.environ))
    is_right = True
    clock = Clock(time.perf_counter, arguments.seconds, {})
    if arguments.processor_time:
        clock = Clock(time.process_time, arguments.seconds, {"INFERENCE_NUM_THREADS": 1})
    print(machine())
    with TemporaryDirectory() as scratch:
        for path in arguments.models:
            model_dir = model_directory(path, cache, Path(scratch))
            print(f"\n{path.name}")
            texts = read_text(Tokenizer.load(model_dir), arguments.num_tokens, arguments.length)
            file = find_gguf(path)
            if file is not None and arguments.check_tokens:
                found = check_reader(model_dir, file, texts.token_ids[0][: arguments.check_tokens])
                is_right &= found.is_right
                print(
                    f"reader {'right' if found.is_right else 'WRONG'}: log probabilities differ by "
                    f"at most {found.worst_difference:.2g}, top-1 agreement {found.agreement:.2%}, "
                    f"{found.num_greedy} greedy tokens are the same"
                )
            cells = measure(model_dir, texts.token_ids, arguments.ways, clock)
            if arguments.genai:
                exact = load_model(model_dir, exact=True)
                peer = genai_quality(model_dir, exact, texts.token_ids, arguments.genai)
                cells["genai's pipeline"] = _cells(peer)
            if file is not None and arguments.llama_cpp:
                peer = llama_quality(arguments.llama_cpp, file, texts.page, Path(scratch))
                cells["llama.cpp"] = _cells(peer)
            blank = ["-"] * (len(HEADER) - 1)
            rows = [(name, *(found + blank)[: len(blank)]) for name, found in cells.items()]
            print(f"\n{table(HEADER, rows)}", flush=True)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
