"""What one token costs in each format of weights, and with each of OpenVINO's properties that may
matter: milliseconds a step of one sequence, bytes of weights a second, and what share of the
memory's speed at that moment that is.

Models with random weights are made where they are missing. A table is of one format; its ways are
measured in turn, round by round, and compared within rounds, since a neighbour may slow all of
them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from bench.common.report import machine, table
from bench.models import write_model
from bench.random_models.shapes import SHAPES
from bench.random_models.weights import WEIGHT_FORMATS
from fastovms.engine.model.compilation import load_model
from fastovms.parts.doctor.facts import measure_bandwidth
from fastovms.parts.tuning.measurement import CONTEXT, MeasuredStep, inputs_of
from fastovms.system.memory import num_usable_cpus

MODELS: Final = Path(__file__).with_name("models")
ROUNDS: Final = 5
STEPS: Final = 12
"""Steps of a round and way; a round's time is their median."""

_GROUPS: Final = (32, 64, 128, 1024)
_GROUP: Final = "DYNAMIC_QUANTIZATION_GROUP_SIZE"


class Way(NamedTuple):
    name: str
    properties: dict[str, str]


def ways(num_cpus: int) -> dict[str, list[Way]]:
    """Returns the properties that can be compared, by what they are about."""
    groups = [
        Way(f"8-bit activations in groups of {size}", {_GROUP: str(size)}) for size in _GROUPS
    ]
    half = str(max(1, num_cpus // 2))
    return {
        "groups": [*groups, Way("activations in f32", {_GROUP: "0"})],
        "threads": [
            Way("default", {}),
            Way(f"{half} of {num_cpus} threads", {"INFERENCE_NUM_THREADS": half}),
            Way("not pinned", {"ENABLE_CPU_PINNING": "NO"}),
            Way("P-cores only", {"SCHEDULING_CORE_TYPE": "PCORE_ONLY"}),
            Way("static partitioner", {"TBB_PARTITIONER": "STATIC"}),
        ],
        "precision": [
            Way("f32", {}),
            Way("bf16", {"INFERENCE_PRECISION_HINT": "bf16"}),
        ],
    }


def model_of(models: Path, shape_name: str, weight_format: str) -> Path:
    """Returns the directory of a model, which is made if it is missing."""
    directory = models / f"{shape_name}-{weight_format}"
    if not (directory / "openvino_model.bin").exists():
        print(f"making {directory}", file=sys.stderr)
        write_model(replace(SHAPES[shape_name], weight_format=weight_format), directory)
    return directory


def bytes_a_token(directory: Path, shape_name: str) -> int:
    """Returns the bytes of weights that a token reads: of the embedding it needs one row alone."""
    shape = SHAPES[shape_name]
    size = (directory / "openvino_model.bin").stat().st_size
    is_fp16 = directory.name.endswith("fp16")
    return size - shape.vocab_size * shape.hidden_size * (2 if is_fp16 else 1)


def measure(directory: Path, tried: list[Way]) -> tuple[dict[str, list[float]], list[float]]:
    """Returns the seconds of a step by way, round by round, and the memory's bytes a second."""
    models = {}
    for way in tried:
        properties = {"INFERENCE_PRECISION_HINT": "f32", **way.properties}
        models[way.name] = load_model(directory, properties=properties)
    case = MeasuredStep(1, CONTEXT, 1)
    for model in models.values():
        model.allocate_cache(-(-(CONTEXT + 1) // model.block_size))
        for _ in range(3):
            model.infer(inputs_of(case, model.block_size))
    times: dict[str, list[float]] = {way.name: [] for way in tried}
    speeds = []
    for _ in range(ROUNDS):
        speeds.append(measure_bandwidth(num_usable_cpus(), 0, 2**40, max_seconds=0.2))
        for name, model in models.items():
            inputs = inputs_of(case, model.block_size)
            taken = []
            for _ in range(STEPS):
                start = time.perf_counter()
                model.infer(inputs)
                taken.append(time.perf_counter() - start)
            times[name].append(statistics.median(taken))
    return times, speeds


def main() -> None:
    choices = ways(num_usable_cpus())
    parser = argparse.ArgumentParser("python -m bench.exports", description=__doc__)
    parser.add_argument("shape", choices=SHAPES, help="the shape, such as 1b")
    parser.add_argument(
        "-f", "--formats", nargs="+", choices=WEIGHT_FORMATS, default=WEIGHT_FORMATS
    )
    parser.add_argument("--ways", choices=choices, default="groups", help="(default: %(default)s)")
    parser.add_argument(
        "--models", type=Path, default=MODELS, help="where models are (default: %(default)s)"
    )
    arguments = parser.parse_args()
    rows = []
    for weight_format in arguments.formats:
        directory = model_of(arguments.models, arguments.shape, weight_format)
        size = bytes_a_token(directory, arguments.shape)
        times, speeds = measure(directory, choices[arguments.ways])
        memory = statistics.median(speeds)
        for name, seconds in times.items():
            rate = size / statistics.median(seconds)
            rows.append(
                (
                    weight_format,
                    f"{size / 1e6:.0f}",
                    name,
                    f"{1000 * statistics.median(seconds):.1f}",
                    f"{rate / 1e9:.1f}",
                    f"{memory / 1e9:.1f}",
                    f"{rate / memory:.0%}",
                )
            )
    print(machine())
    print(f"{arguments.shape}, one sequence, context {CONTEXT}, medians of {ROUNDS} rounds\n")
    header = ("weights", "MB a token", "way", "ms", "GB/s", "memory GB/s", "share")
    print(table(header, rows))


if __name__ == "__main__":
    main()
