"""The engines that are compared: any OpenAI-compatible server, and the C++ pipeline in process."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import openvino as ov
import openvino_genai

from bench.serving.load_shape import Request
from bench.streams import completion, run_streams
from fastovms.client.target import Target
from fastovms.load_test.timeline import Load, Timeline

Side = Callable[[Sequence[Request]], Load]
"""Runs the requests of a round to their ends."""


class Server:
    """A server, over HTTP."""

    def __init__(self, url: str, model: str | None, runner: asyncio.Runner) -> None:
        """`model`: None = the first that the server lists."""
        self._target = Target.from_url(url)
        self._model = model if model is not None else _first_model(url)
        self._runner = runner

    def __call__(self, requests: Sequence[Request]) -> Load:
        sent = [
            completion(self._model, request.prompt, request.num_output_tokens)._replace(
                due=request.due
            )
            for request in requests
        ]
        return self._runner.run(run_streams(self._target, sent))


def _first_model(url: str) -> str:
    with urlopen(f"{url.rstrip('/')}/models") as response:
        name: str = json.load(response)["data"][0]["id"]
    return name


class Genai:
    """The C++ pipeline with its defaults."""

    def __init__(self, model_dir: Path) -> None:
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            model_dir, openvino_genai.SchedulerConfig(), "CPU"
        )
        self._num_requests = 0

    def __call__(self, requests: Sequence[Request]) -> Load:
        start = time.perf_counter()
        timelines = [Timeline(start + request.due, completion_tokens=0) for request in requests]
        running: list[tuple[openvino_genai.GenerationHandle, Timeline]] = []
        next_request = 0
        while next_request < len(requests) or self._pipeline.has_non_finished_requests():
            now = time.perf_counter() - start
            while next_request < len(requests) and requests[next_request].due <= now:
                handle = self._add(requests[next_request])
                running.append((handle, timelines[next_request]))
                next_request += 1
            if not self._pipeline.has_non_finished_requests():
                time.sleep(requests[next_request].due - now)
                continue
            self._pipeline.step()
            now = time.perf_counter()
            for handle, timeline in running:
                while handle.can_read():
                    (output,) = handle.read().values()
                    timeline.arrivals.append(now)
                    timeline.completion_tokens = timeline.num_tokens + len(output.generated_ids)
        return Load.of(timelines)

    def _add(self, request: Request) -> openvino_genai.GenerationHandle:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = request.num_output_tokens
        config.ignore_eos = True
        config.do_sample = False
        token_ids = ov.Tensor(np.array([request.prompt], dtype=np.int64))
        self._num_requests += 1
        return self._pipeline.add_request(self._num_requests, token_ids, config)
