"""Runs a generation and sends its answer: whole, or as a stream. Whatever fails before the first
byte still gets a status of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from fastovms.api.generation.delta_stream import ClientTooSlow, DeltaStream, Frames
from fastovms.api.generation.deltas import DeltaCallback, SampleDelta
from fastovms.api.request.prompting import offload
from fastovms.api.request.tokens.token_report import TokenReport, num_values
from fastovms.api.wire.error_responses import log_fields_of
from fastovms.config.api_config import ApiConfig
from fastovms.http.routing.messages import EVENT_STREAM, HeaderPairs, Request, Response
from fastovms.params import ModelInfo

Run = Callable[[DeltaCallback], Awaitable[None]]
"""Generates, telling the callback of every delta."""


async def collect(run: Run, num_samples: int) -> list[list[SampleDelta]]:
    """Returns each sample's deltas."""
    deltas: list[list[SampleDelta]] = [[] for _ in range(num_samples)]
    await run(lambda delta: deltas[delta.choice].append(delta))
    return deltas


def format_cost(
    deltas: Sequence[Sequence[SampleDelta]], report: TokenReport, model: ModelInfo
) -> int:
    """Returns how much there is to format about generated tokens: the work for `offload`."""
    num_tokens = sum(len(delta.tokens) for parts in deltas for delta in parts)
    if report.num_logprobs is not None:
        num_tokens *= num_values(report.num_logprobs, model)
    return max(num_tokens, sum(map(len, deltas)))


async def respond(encode: Callable[[], bytes], cost: int, headers: HeaderPairs = ()) -> Response:
    """Returns the answer that `encode` makes, in a thread when it costs much."""
    return Response(200, await offload.run(encode, cost), headers=headers)


async def stream_answer(
    request: Request,
    frames: Frames,
    run: Run,
    num_samples: int,
    config: ApiConfig,
    *,
    handshake: bool,
    content_type: str = EVENT_STREAM,
    headers: HeaderPairs = (),
) -> None:
    """Streams an answer. What fails before the first byte is raised, what fails later ends the
    stream."""
    stream = request.stream(content_type=content_type, headers=headers)
    deltas = DeltaStream(
        stream,
        frames,
        num_samples=num_samples,
        handshake=handshake,
        max_pending_chars=config.max_pending_chars,
    )
    try:
        await run(deltas.push)
    except ClientTooSlow:
        return
    except Exception as error:
        if not stream.started:
            raise
        request.log_fields.update(log_fields_of(error))
        deltas.fail(error)
