"""`fastovms bench`: sends load to a server and reports its performance."""

from __future__ import annotations

import asyncio
import json
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson
import uvloop
from tqdm import tqdm

from fastovms.errors import ConfigurationError, RequestFailed
from fastovms.parts.client.http_client import (
    HttpClient,
    Target,
    cancelled_by,
    decode_kernels,
    first_model,
)
from fastovms.parts.load_test.config import (
    BACKENDS,
    DEFAULT_OUTPUT_LEN,
    DataConfig,
    LoadConfig,
    ReportConfig,
    arrival_times,
)
from fastovms.parts.load_test.report import (
    Load,
    LoadSummary,
    Timeline,
    check_plots,
    details,
    draw,
    html_page,
    paired_ratios,
    render,
    render_ratios,
    summarize,
    values,
)

RANDOM_TOKEN_IDS: Final = range(5, 400)
"""Token ids that every vocabulary has; they nearly always stand for single bytes or frequent
syllables."""

_WORDS: Final = (
    "the of and to in is was for on that with as are by at from this have not but had his they her "
    "which or we an there been one all can more has their said when would who will no if out so up "
    "what about them then she into him could some new only these its time other after over also "
    "first now two very even most may such like me just our people any how before where your well "
    "back years made between own under last old good work water life way day hand part place home"
)
"""Words that are a single token in nearly every vocabulary."""


class Sample(NamedTuple):
    """One request of a load.

    Attributes:
        prompt: a text, or token ids.
        output_len: the maximum number of output tokens.
    """

    prompt: str | list[int]
    output_len: int


def draw_samples(
    config: DataConfig, number: int, rng: random.Random, *, as_text: bool
) -> list[Sample]:
    """Returns the requests of one round. Raises ConfigurationError if the data set's file does not
    exist or has the wrong format.

    Args:
        as_text: whether random prompts are texts, of about one word per token, rather than token
            ids, which chats do not accept.
    """
    match config.dataset_name:
        case "random":
            return [_random_sample(config, rng, as_text=as_text) for _ in range(number)]
        case "prefix_repetition":
            return _repeated_prefixes(config, number, rng, as_text=as_text)
    samples = list(_of_file(config))
    if not samples:
        raise ConfigurationError(f"--dataset-path {config.dataset_path} has no prompt")
    if len(samples) < number:
        return [samples[i % len(samples)] for i in range(number)]
    return rng.sample(samples, number)


def _random_sample(config: DataConfig, rng: random.Random, *, as_text: bool) -> Sample:
    ratio = config.random_range_ratio
    return Sample(
        _random_prompt(_vary(config.random_input_len, ratio, rng), rng, as_text=as_text),
        _vary(config.random_output_len, ratio, rng),
    )


def _vary(length: int, ratio: float, rng: random.Random) -> int:
    """Returns a uniformly random length within ±`ratio` of `length`, as in vLLM."""
    return max(1, rng.randint(int(length * (1 - ratio)), int(length * (1 + ratio))))


def _random_prompt(length: int, rng: random.Random, *, as_text: bool) -> str | list[int]:
    if as_text:
        return " ".join(rng.choices(_WORDS.split(), k=length))
    return rng.choices(RANDOM_TOKEN_IDS, k=length)


def _repeated_prefixes(
    config: DataConfig, number: int, rng: random.Random, *, as_text: bool
) -> list[Sample]:
    """Returns requests whose prompts begin with one of a few prefixes, in random order. The numbers
    of requests per prefix differ by one at most."""
    lengths = config.prefix_repetition_prefix_len, config.prefix_repetition_suffix_len
    num_prefixes = config.prefix_repetition_num_prefixes
    prefixes = [_random_prompt(lengths[0], rng, as_text=as_text) for _ in range(num_prefixes)]
    prompts: list[str | list[int]] = []
    for i in range(number):
        prefix, suffix = (
            prefixes[i % num_prefixes],
            _random_prompt(lengths[1], rng, as_text=as_text),
        )
        if isinstance(prefix, str):
            prompts.append(f"{prefix} {suffix}")
        else:
            prompts.append([*prefix, *map(int, suffix)])
    rng.shuffle(prompts)
    return [Sample(prompt, config.prefix_repetition_output_len) for prompt in prompts]


def _of_file(config: DataConfig) -> Iterator[Sample]:
    if config.dataset_path is None:
        raise ConfigurationError(f"--dataset-name {config.dataset_name} needs --dataset-path")
    path = Path(config.dataset_path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigurationError(f"cannot read --dataset-path {path}: {reason}") from None
    try:
        if config.dataset_name == "sharegpt":
            yield from _sharegpt(json.loads(text), config)
        else:
            # `splitlines` would split at other characters too, which JSON strings may contain.
            for line in filter(str.strip, text.split("\n")):
                yield _custom(json.loads(line), config)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        forms = {
            "sharegpt": 'a JSON list of {"conversations": [{"value": "..."}, ...]}',
            "custom": 'lines of JSON such as {"prompt": "...", "output_tokens": 100}',
        }
        raise ConfigurationError(
            f"--dataset-path {path} must have {forms[config.dataset_name]}: {error!r}"
        ) from None


def _sharegpt(conversations: list[dict[str, Any]], config: DataConfig) -> Iterator[Sample]:
    """Yields the first turn of each conversation. The length of its answer is estimated from the
    second turn at four characters per token."""
    for conversation in conversations:
        turns = [turn["value"] for turn in conversation["conversations"][:2]]
        if len(turns) == 2 and all(turns):
            yield Sample(_whole(turns[0]), config.output_len or max(1, len(turns[1]) // 4))


def _custom(line: dict[str, Any], config: DataConfig) -> Sample:
    prompt, length = line["prompt"], line.get("output_tokens")
    is_length = length is None or (type(length) is int and length >= 1)  # bool is a subclass of int
    if not isinstance(prompt, str) or not is_length:
        raise TypeError("prompt must be text, output_tokens an integer of at least 1")
    return Sample(_whole(prompt), config.output_len or length or DEFAULT_OUTPUT_LEN)


def _whole(text: str) -> str:
    """Returns the text with replacements for lone surrogates, which JSON can express but UTF-8
    cannot."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


OnEnd = Callable[[Timeline], None]
"""Called at the end of each request."""


class LoadRequest(NamedTuple):
    """A request and its start time, in seconds from the start of the load."""

    path: str
    body: bytes
    due: float = 0.0


class Cancelled(RequestFailed):
    """Raised in a request that is still running when the load is cancelled."""

    def __init__(self) -> None:
        super().__init__("cancelled", "")


async def run_load(
    client: HttpClient,
    requests: Sequence[LoadRequest],
    *,
    max_concurrency: int | None = None,
    max_seconds: float | None = None,
    on_end: OnEnd = lambda timeline: None,
) -> Load:
    """Runs a load to its end and returns the timelines of its requests; that of a failed request
    has the reason. Connecting is not measured: each request has an open connection before its clock
    starts.

    Args:
        requests: in the order of their start times.
        max_seconds: seconds after which a request is cancelled; None = never.
        on_end: called at the end of each request, also if the load is cancelled.
    """
    slots: AbstractAsyncContextManager[object] = (
        nullcontext() if max_concurrency is None else asyncio.Semaphore(max_concurrency)
    )
    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        tasks = []
        for request in requests:
            wait = start + request.due - time.perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            tasks.append(
                group.create_task(_run_request(client, request, slots, max_seconds, on_end))
            )
    return Load.of([task.result() for task in tasks])


async def _run_request(
    client: HttpClient,
    request: LoadRequest,
    slots: AbstractAsyncContextManager[object],
    max_seconds: float | None,
    on_end: OnEnd,
) -> Timeline:
    async with slots:
        timeline = Timeline(started=time.perf_counter())
        try:
            async with asyncio.timeout(max_seconds), client.connection() as connection:
                timeline.started = time.perf_counter()
                await connection.exchange("POST", request.path, request.body, timeline.record)
            if not timeline.arrivals:
                raise RequestFailed("no output", "the stream ended without a token")
        except RequestFailed as error:
            timeline.failure = error
        except TimeoutError:
            timeline.failure = RequestFailed("timeout", f"no end after {max_seconds:g} s")
        except asyncio.CancelledError:
            timeline.failure = Cancelled()
            raise
        finally:
            timeline.ended = time.perf_counter()
            on_end(timeline)
    return timeline


class LoadedServer:
    """A server under load, and the results of its rounds.

    Attributes:
        url: the URL on the command line.
        model: the requested model; None = the first one that the server lists.
        decode_kernels: the state of the decode kernels after the load, from the server's metrics.
    """

    def __init__(self, url: str, target: Target, config: LoadConfig) -> None:
        key = {} if config.api_key is None else {"Authorization": f"Bearer {config.api_key}"}
        headers = key | dict(config.headers)
        self.url = url
        self.client = HttpClient(target, headers=headers, verify=not config.insecure)
        self.model = config.model
        self.decode_kernels = ""
        self.loads: list[Load] = []

    @property
    def load(self) -> Load:
        """The results of all rounds together."""
        return Load(
            sum(load.seconds for load in self.loads),
            [timeline for load in self.loads for timeline in load.timelines],
        )

    async def end(self) -> None:
        """Reads the server's state for the report, and closes the connections."""
        if self.model is not None:
            self.decode_kernels = await decode_kernels(self.client, self.model)
        await self.client.close()

    async def find_model(self) -> None:
        """Sets the model to the first one that the server lists, unless it is given. Raises
        RequestFailed if the server does not answer or lists no models."""
        if self.model is None:
            self.model = await first_model(self.client)


async def run_rounds(
    servers: Sequence[LoadedServer],
    config: LoadConfig,
    data: DataConfig,
    num_rounds: int,
    on_end: OnEnd,
) -> None:
    """Sends the same load to all servers in turn, in reverse order in every other round. If
    cancelled, keeps the results so far. Raises ConfigurationError if a request cannot be encoded as
    JSON; RequestFailed if a server does not list its models. `on_end` is called at the end of each
    request that counts."""
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
    except TypeError as error:
        # A value of --model or --extra-body, such as an integer beyond 64 bits.
        raise ConfigurationError(f"a request cannot be encoded as JSON: {error}") from None
    await run_load(
        server.client,
        requests,
        max_concurrency=config.max_concurrency,
        max_seconds=config.request_timeout,
        on_end=on_end,
    )


def _body(sample: Sample, model: str | None, config: LoadConfig) -> dict[str, object]:
    """Returns the body of a streaming request that asks for usage."""
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


FAILED: Final = 1
"""The exit code if any request failed."""


def bench(url: str, config: LoadConfig, data: DataConfig, report: ReportConfig) -> int:
    """Runs the load and prints the report; Ctrl-C and SIGTERM end the load early. Raises
    ConfigurationError if options contradict each other or a file is not available; RequestFailed if
    a server cannot be reached or has no model.

    Returns:
        The exit code: 0, `FAILED`, or 128 plus the number of the signal that ended the load.
    """
    servers = [LoadedServer(url, Target.from_url(url), config)]
    if report.compare is not None:
        compared = Target.from_url(report.compare, "--compare")
        servers.append(LoadedServer(report.compare, compared, config))
    if report.html is not None or report.svg is not None:
        check_plots()
    draw_samples(
        data, 1, random.Random(0), as_text=True
    )  # raises for a faulty file before the load
    _raise_file_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code_of_signal = runner.run(_run(servers, config, data, report))
    if not all(server.loads for server in servers):
        print("fastovms: ended before any request was measured", file=sys.stderr)
        return code_of_signal
    has_failures = _write(servers, config, report)
    return code_of_signal or (FAILED if has_failures else 0)


async def _run(
    servers: Sequence[LoadedServer], config: LoadConfig, data: DataConfig, report: ReportConfig
) -> int:
    """Runs all rounds. Returns the exit code for the signal that interrupted them; 0 = not
    interrupted."""
    num_rounds = config.rounds if len(servers) > 1 else 1
    with tqdm(
        total=config.num_prompts * num_rounds * len(servers),
        unit="req",
        file=sys.stderr,
        disable=True if report.disable_tqdm else None,  # None = if stderr is not a terminal
    ) as progress:
        task = asyncio.create_task(
            run_rounds(servers, config, data, num_rounds, lambda timeline: progress.update())
        )
        with cancelled_by(signal.SIGINT, signal.SIGTERM, task=task) as cancellation:
            await asyncio.wait([task])
    for server in servers:
        await server.end()
    if task.cancelled():
        return cancellation.exit_code
    task.result()
    return 0


def _raise_file_limit() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _write(servers: Sequence[LoadedServer], config: LoadConfig, report: ReportConfig) -> bool:
    """Prints and saves the report. Returns whether any request failed."""
    found = [_ServerResults(server, config, report) for server in servers]
    texts, result = [one.text for one in found], found[0].values
    if len(found) > 1:
        ours, theirs = (one.rounds for one in found)
        num_rounds = min(len(ours), len(theirs))
        ratios = paired_ratios(ours[:num_rounds], theirs[:num_rounds])
        texts.append(f"{num_rounds} rounds in turn\n{render_ratios(ratios)}")
        result = {
            "url": found[0].values,
            "compare": found[1].values,
            "rounds": num_rounds,
            "ratios": ratios,
        }
    text, written = "\n\n".join(texts), json.dumps(result, indent=2)
    print(written if report.json else text, flush=True)
    name = report.result_filename
    if name is None and (report.save_result or report.save_detailed):
        name = Path(f"fastovms-bench-{time.strftime('%Y%m%d-%H%M%S')}.json")
    if name is not None:
        _save(name, "--result-filename", f"{written}\n")
    if report.html is not None or report.svg is not None:
        svg = draw({server.url: server.loads for server in servers})
        if report.svg is not None:
            _save(report.svg, "--svg", svg)
        if report.html is not None:
            title = f"fastovms bench {' and '.join(server.url for server in servers)}"
            _save(report.html, "--html", html_page(title, text, svg))
    return any(one.summary.failed for one in found)


class _ServerResults:
    """The results of one server: summaries, the report's text and its JSON members."""

    def __init__(self, server: LoadedServer, config: LoadConfig, report: ReportConfig) -> None:
        config = replace(config, model=server.model)
        self.rounds = [_summary(load, config) for load in server.loads]
        self.summary = _summary(server.load, config)
        text = render(self.summary, config)
        if server.decode_kernels:
            text = f"decode kernels: {server.decode_kernels}\n{text}"
        self.text = text if report.compare is None else f"{server.url}\n{text}"
        self.values: dict[str, object] = {
            "date": time.strftime("%Y%m%d-%H%M%S"),
            "base_url": server.url,
            **({"decode_kernels": server.decode_kernels} if server.decode_kernels else {}),
            **values(self.summary, config),
            **(details(server.load) if report.save_detailed else {}),
        }


def _summary(load: Load, config: LoadConfig) -> LoadSummary:
    return summarize(
        load,
        percentiles=config.metric_percentiles,
        latencies=config.percentile_metrics,
        goodput=config.goodput,
    )


def _save(path: Path, flag: str, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise ConfigurationError(f"cannot write {flag} {path}: {error.strerror}") from None
