"""The engines that are compared: any OpenAI-compatible server, and the C++ pipeline in process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import openvino as ov
import openvino_genai

from bench.common.streams import completion, run_streams
from bench.serving.load_shape import Request
from fastovms.parts.client.http_client import HttpClient, Target, decode_kernels, first_model
from fastovms.parts.load_test.report import Load, Timeline

Side = Callable[[Sequence[Request]], Load]
"""Runs the requests of a round to their ends."""


class Server:
    """A server over HTTP."""

    def __init__(self, target: Target, model: str | None, runner: asyncio.Runner) -> None:
        """Requests the list of models if no model is given.

        Args:
            model: None = the first one that the server lists.

        Raises:
            RequestFailed: the server does not answer or lists no model.
        """
        self._target = target
        self._model = model if model is not None else runner.run(_first_model(target))
        self._runner = runner

    def __call__(self, requests: Sequence[Request]) -> Load:
        """Raises RequestFailed: a stream did not end correctly; the first one is reported."""
        sent = [
            completion(self._model, request.prompt, request.num_output_tokens)._replace(
                due=request.due
            )
            for request in requests
        ]
        return self._runner.run(run_streams(self._target, sent))

    def decode_kernels(self) -> str:
        """Returns the state of the server's decode kernels; "" = it reports none."""
        return self._runner.run(_kernels(self._target, self._model))


async def _kernels(target: Target, model: str) -> str:
    client = HttpClient(target)
    try:
        return await decode_kernels(client, model)
    finally:
        await client.close()


async def _first_model(target: Target) -> str:
    client = HttpClient(target)
    try:
        return await first_model(client)
    finally:
        await client.close()


class Genai:
    """The C++ pipeline."""

    def __init__(
        self,
        pipeline: openvino_genai.ContinuousBatchingPipeline,
        *,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._pipeline = pipeline
        self._clock = clock
        self._sleep = sleep
        self._num_requests = 0

    @classmethod
    def load(cls, model_dir: Path) -> Genai:
        """Loads a model with the pipeline's defaults."""
        scheduler = openvino_genai.SchedulerConfig()
        return cls(openvino_genai.ContinuousBatchingPipeline(model_dir, scheduler, "CPU"))

    def __call__(self, requests: Sequence[Request]) -> Load:
        """Runs steps in this thread, and adds due requests between steps: the latency of a request
        is measured from when it is due."""
        start = self._clock()
        timelines = [Timeline(start + request.due, completion_tokens=0) for request in requests]
        handles: list[openvino_genai.GenerationHandle] = []
        while len(handles) < len(requests) or self._pipeline.has_non_finished_requests():
            now = self._clock() - start
            for request in requests[len(handles) :]:
                if request.due > now:
                    break
                handles.append(self._add(request))
            if not self._pipeline.has_non_finished_requests():
                self._sleep(requests[len(handles)].due - now)
                continue
            self._pipeline.step()
            now = self._clock()
            for handle, timeline in zip(handles, timelines, strict=False):
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
