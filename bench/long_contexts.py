"""Measures the KV cache in each precision at long contexts: prompt tokens per second, milliseconds
between tokens, memory, and the difference of log probabilities from those with an f32 cache.

Speeds are of the model without a server, beside `openvino_genai.ContinuousBatchingPipeline` and
llama.cpp if they are given. Every sequence has its own blocks, filled with a prompt's keys and
values. For the exactness, a text is generated with an f32 cache and computed again with each other
precision: most of it in chunks, as a prompt, and its end token by token.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.common.arguments import model_directory
from bench.common.report import machine, median, table
from bench.steps import RANDOM_TOKEN_IDS, Genai, step_times
from fastovms.engine.model.compilation import load_model
from fastovms.engine.model.kv_cache import BlockCopy
from fastovms.engine.model.model import PagedModel, as_float32
from fastovms.engine.model.step_inputs import StepInputs, StepLayout
from fastovms.parts.comparison.graph_comparison import log_softmax
from fastovms.parts.tuning.measurement import MeasuredStep, inputs_of
from fastovms.setting import integer

PRECISIONS: Final = ("f16", "u8", "u4")
CHUNK: Final = 256
NUM_DECODED: Final = 64
"""The number of tokens at the end of the text that are computed one by one."""

_STEPS: Final = 12


class Cost(NamedTuple):
    """Milliseconds between tokens, and prompt tokens per second."""

    step_ms: float
    prefill: float


def ours(model: PagedModel, context: int, num_sequences: int) -> Cost:
    num_blocks = -(-(context + 1) // model.block_size)
    model.allocate_cache(num_sequences * num_blocks)
    start = time.perf_counter()
    for step in _prompt(context, model.block_size):
        model.infer(step)
    prefill = context / (time.perf_counter() - start)
    model.copy_blocks(
        BlockCopy(block, number * num_blocks + block)
        for number in range(1, num_sequences)
        for block in range(num_blocks)
    )
    inputs = inputs_of(MeasuredStep(num_sequences, context, 1), model.block_size)
    model.infer(inputs)
    return Cost(_median_ms(lambda: model.infer(inputs)), prefill)


def _prompt(num_tokens: int, block_size: int) -> Iterator[StepInputs]:
    token_ids = array("q", np.random.default_rng(0).integers(*RANDOM_TOKEN_IDS, num_tokens))
    blocks = array("i", range(-(-num_tokens // block_size)))
    for start in range(0, num_tokens, CHUNK):
        layout = StepLayout(block_size)
        last = layout.add(token_ids, start, min(start + CHUNK, num_tokens), blocks)
        yield layout.finish(array("q", (last,)))


def _median_ms(step: Callable[[], object]) -> float:
    times = []
    for _ in range(_STEPS):
        start = time.perf_counter()
        step()
        times.append(1000 * (time.perf_counter() - start))
    return median(times)


def genai(model_dir: Path, precision: str, context: int, num_sequences: int) -> Cost:
    engine = Genai(model_dir, {"KV_CACHE_PRECISION": precision})
    prompt = np.random.default_rng(0).integers(*RANDOM_TOKEN_IDS, context + 1).tolist()
    start = time.perf_counter()
    engine.start(prompt[:-1], 1, 1)
    prefill = context / (time.perf_counter() - start)
    engine.finish()
    return Cost(median(step_times(engine, prompt, num_sequences, _STEPS)), prefill)


def llama_bench(program: Path, gguf: Path, context: int) -> Cost:
    """Runs llama.cpp's own benchmark for one stream."""
    command = [str(program), "-m", str(gguf), "-o", "json", "-r", "1", "-p", str(context)]
    command += ["-n", "0", "-t", "2"]
    prefill = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    command = [str(program), "-m", str(gguf), "-o", "json", "-r", "1", "-p", "0", "-t", "2"]
    command += ["-n", str(_STEPS), "-d", str(context)]
    decode = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return Cost(1000 / decode[0]["avg_ts"], prefill[0]["avg_ts"])


# Exactness


def draw_text(model: PagedModel, num_tokens: int) -> list[int]:
    """Returns a text that the model generates at temperature 1."""
    rng = np.random.default_rng(0)
    blocks = array("i", range(-(-num_tokens // model.block_size)))
    model.allocate_cache(len(blocks))
    token_ids = array("q", (RANDOM_TOKEN_IDS[0],))
    while len(token_ids) < num_tokens:
        layout = StepLayout(model.block_size)
        last = layout.add(token_ids, len(token_ids) - 1, len(token_ids), blocks)
        logits = as_float32(model.infer(layout.finish(array("q", (last,)))))[0]
        token_ids.append(int(np.argmax(logits + rng.gumbel(size=len(logits)))))
    return list(token_ids)


def score(model: PagedModel, text: list[int]) -> NDArray[np.float32]:
    """Returns the log probability of each token of a text except the first."""
    token_ids, end = array("q", text), len(text) - 1
    blocks = array("i", range(-(-len(text) // model.block_size)))
    model.allocate_cache(len(blocks))
    starts = [*range(0, end - NUM_DECODED, CHUNK), *range(end - NUM_DECODED, end)]
    parts = []
    for start, stop in zip(starts, [*starts[1:], end], strict=True):
        layout = StepLayout(model.block_size)
        layout.add(token_ids, start, stop, blocks)
        logits = as_float32(model.infer(layout.finish(array("q", range(stop - start)))))
        rows = log_softmax(logits.copy())
        parts.append(rows[np.arange(stop - start), text[start + 1 : stop + 1]])
    scores: NDArray[np.float32] = np.concatenate(parts)
    return scores


def _load(model_dir: Path, precision: str, *, is_exact: bool = False) -> PagedModel:
    """Loads a model with a cache in the given precision; `is_exact` = with f32 activations, too."""
    properties = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": precision}
    if is_exact:
        properties["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = "0"
    return load_model(model_dir, properties=properties)


def speeds(arguments: argparse.Namespace) -> None:
    rows: list[tuple[object, ...]] = []
    for context in arguments.contexts:
        for num in arguments.num_sequences:
            for precision in arguments.precisions:
                model = _load(arguments.model_dir, precision)
                cost = ours(model, context, num)
                size = model.bytes_per_block / model.block_size * context * num / 1e6
                rows.append((context, num, f"fastovms, {precision}", *cost, f"{size:.0f}"))
                if arguments.genai and precision != "u4":
                    cost = genai(arguments.model_dir, precision, context, num)
                    rows.append((context, num, f"genai, {precision}", *cost, f"{size:.0f}"))
            if arguments.llama_bench and num == 1:
                cost = llama_bench(arguments.llama_bench, arguments.gguf, context)
                rows.append((context, 1, "llama.cpp, f16", *cost, "-"))
    header = ("context", "streams", "what", "ms between tokens", "prompt tokens/s", "cache MB")
    print(table(header, rows))


def exactness(arguments: argparse.Namespace) -> None:
    reference = _load(arguments.model_dir, "f32", is_exact=True)
    text = draw_text(reference, arguments.exactness)
    expected = score(reference, text)
    rows = []
    for precision in arguments.precisions:
        model = _load(arguments.model_dir, precision, is_exact=True)
        off = np.abs(score(model, text) - expected)
        decoded = off[-NUM_DECODED:]
        rows.append((precision, *map(float, (off.mean(), off.max(), decoded.mean()))))
    print(f"differences of {len(expected)} log probabilities from those with an f32 cache\n")
    print(table(("cache", "mean", "worst", f"mean of the last {NUM_DECODED}"), rows))


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.long_contexts", description=__doc__)
    parser.add_argument("model_dir", type=model_directory)
    parser.add_argument("-c", "--contexts", type=integer(1), nargs="+", default=(4000, 16000))
    parser.add_argument("-n", "--num-sequences", type=integer(1), nargs="+", default=(1, 8))
    parser.add_argument("-p", "--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--genai", action="store_true", help="measure genai, too")
    parser.add_argument("--llama-bench", type=Path, help="llama.cpp's program, to measure it too")
    parser.add_argument("--gguf", type=Path, help="the model for it")
    parser.add_argument(
        "--exactness",
        type=integer(NUM_DECODED + 1),
        metavar="TOKENS",
        help="compare log probabilities of a text instead",
    )
    arguments = parser.parse_args()
    if (arguments.llama_bench is None) != (arguments.gguf is None):
        parser.error("--llama-bench and --gguf go together")
    print(machine(), end="\n\n")
    (exactness if arguments.exactness else speeds)(arguments)


if __name__ == "__main__":
    main()
