"""Gives servers rounds of load, in turn."""

from __future__ import annotations

import random
from collections.abc import Sequence

import orjson

from fastovms.client.http_client import HttpClient
from fastovms.client.model_list import first_model
from fastovms.client.target import Target
from fastovms.errors import ConfigurationError
from fastovms.load_test.arrivals import arrival_times
from fastovms.load_test.data_sets import Sample, draw_samples
from fastovms.load_test.load_config import BACKENDS, DataConfig, LoadConfig
from fastovms.load_test.load_run import LoadRequest, OnEnd, run_load
from fastovms.load_test.timeline import Load, Timeline


class LoadedServer:
    """A server under load, and what its rounds came to.

    Attributes:
        url: as the operator wrote it.
        model: what requests ask for; None = the first that the server lists, once it was asked.
    """

    def __init__(self, url: str, target: Target, config: LoadConfig) -> None:
        key = {} if config.api_key is None else {"Authorization": f"Bearer {config.api_key}"}
        headers = key | dict(config.headers)
        self.url = url
        self.client = HttpClient(target, headers=headers, verify=not config.insecure)
        self.model = config.model
        self.loads: list[Load] = []

    @property
    def load(self) -> Load:
        """All rounds as one."""
        return Load(
            sum(load.seconds for load in self.loads),
            [timeline for load in self.loads for timeline in load.timelines],
        )

    async def find_model(self) -> None:
        """Raises RequestFailed: the server cannot be asked, or lists no model."""
        if self.model is None:
            self.model = await first_model(self.client)


async def run_rounds(
    servers: Sequence[LoadedServer],
    config: LoadConfig,
    data: DataConfig,
    num_rounds: int,
    on_end: OnEnd,
) -> None:
    """Gives all servers the same load in turn; in every other round the last one is first. When it
    is cancelled, the servers have what there is.

    Args:
        on_end: is told of each request that counts, when it ends.

    Raises:
        ConfigurationError: JSON cannot have what each request is to.
        RequestFailed: a server cannot be asked which models it has.
    """
    for server in servers:
        await server.find_model()
    rng = random.Random(config.seed)
    as_text = config.backend == "openai-chat"
    warm_up = draw_samples(data, config.num_warmups, rng, as_text=as_text)
    for server in servers:
        await _run_round(server, warm_up, [0.0] * len(warm_up), config, lambda timeline: None)
    for number in range(num_rounds):
        samples = draw_samples(data, config.num_prompts, rng, as_text=as_text)
        times = arrival_times(len(samples), config.request_rate, config.burstiness, rng)
        for server in servers if number % 2 == 0 else reversed(servers):
            ended: list[Timeline] = []

            def end(timeline: Timeline, ended: list[Timeline] = ended) -> None:
                ended.append(timeline)
                on_end(timeline)

            try:
                await _run_round(server, samples, times, config, end)
            finally:
                if ended:
                    server.loads.append(Load.of(ended))


async def _run_round(
    server: LoadedServer,
    samples: Sequence[Sample],
    times: Sequence[float],
    config: LoadConfig,
    on_end: OnEnd,
) -> None:
    path = config.endpoint or server.client.target.path + BACKENDS[config.backend]
    try:
        requests = [
            LoadRequest(path, orjson.dumps(_body(sample, server.model, config)), due)
            for sample, due in zip(samples, times, strict=True)
        ]
    except TypeError as error:  # of --model or --extra-body: an integer beyond 64 bits, say
        raise ConfigurationError(f"requests cannot be written as JSON: {error}") from None
    await run_load(
        server.client,
        requests,
        max_concurrency=config.max_concurrency,
        max_seconds=config.request_timeout,
        on_end=on_end,
    )


def _body(sample: Sample, model: str | None, config: LoadConfig) -> dict[str, object]:
    """Returns the body of a request for a stream with usage."""
    body: dict[str, object] = {"model": model}
    if config.backend == "openai-chat":
        body["messages"] = [{"role": "user", "content": sample.prompt}]
    else:
        body["prompt"] = sample.prompt
    body |= {
        "max_tokens": sample.output_len,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if config.ignore_eos:
        body["ignore_eos"] = True
    if config.temperature is not None:
        body["temperature"] = config.temperature
    return body | dict(config.extra_body)
