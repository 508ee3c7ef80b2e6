"""Runs `openvino_genai.ContinuousBatchingPipeline` in a process of its own, for comparison with a
server process.

The process writes a line when the pipeline is loaded, one after its first answer and one after its
answer to a long prompt. It ends when its standard input is closed.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from bench.common.process import ending_with_us

PROMPT: Final = "Once upon a time"
LONG_PROMPT: Final = " ".join([PROMPT] * 40)
"""A prompt of more than a hundred tokens: OpenVINO's kernels for many tokens store weights in
another layout."""

NUM_TOKENS: Final = 8
"""The number of tokens of the first answer."""


class Started(NamedTuple):
    """A process that has answered both prompts, and the seconds from its start to each line."""

    pid: int
    ready: float
    answered: float


@contextmanager
def genai_process(model_dir: Path, cache_size: int) -> Iterator[Started]:
    """Starts the process and yields it after it has answered both prompts.

    Raises:
        SystemExit: the process ended early.
    """
    start = time.perf_counter()
    command = [sys.executable, "-m", "bench.common.genai_process", str(model_dir), str(cache_size)]
    process = subprocess.Popen(
        ending_with_us(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        times = []
        for _ in range(3):
            if not process.stdout.readline():
                raise SystemExit("the process with genai's pipeline has ended")
            times.append(time.perf_counter() - start)
        yield Started(process.pid, *times[:2])


def main() -> None:
    import openvino_genai

    model_dir, cache_size = sys.argv[1:]
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = int(cache_size)
    pipeline = openvino_genai.ContinuousBatchingPipeline(Path(model_dir), scheduler, "CPU")
    print("ready", flush=True)
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = NUM_TOKENS
    config.ignore_eos = True
    pipeline.generate([PROMPT], [config])
    print("answered", flush=True)
    pipeline.generate([LONG_PROMPT], [config])
    print("answered a long prompt", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
