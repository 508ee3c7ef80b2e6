"""Sends the texts of one request to a model that encodes, and tells metrics, the access log and
traces what becomes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from numpy import float32
from numpy.typing import NDArray

from fastovms.api.generation.context import ApiContext
from fastovms.api.serving.served_encoder import ServedEncoder
from fastovms.encoding import EncodedTexts, EncoderText
from fastovms.http.routing.messages import Request
from fastovms.telemetry.metrics import FinishedRequest
from fastovms.telemetry.tracing import (
    EncodingFormat,
    GenerationEnd,
    GenerationKind,
    GenerationSpan,
    GenerationStart,
    Phase,
)

BeginSpan = Callable[[], GenerationSpan | None]
"""Begins the span of a request; None = it has none."""


class EncodingCall:
    """What a request has of a model. It begins when the model is there.

    Attributes:
        client: who has sent it: clients take turns.
    """

    def __init__(
        self,
        model: ServedEncoder,
        client: str,
        log_fields: dict[str, object],
        begin_span: BeginSpan | None = None,
    ) -> None:
        """
        Args:
            log_fields: what the access log tells of the request.
        """
        self.model = model
        self.client = client
        self._log_fields = log_fields
        self._begin_span = begin_span
        self._now = asyncio.get_running_loop().time
        self._started_at = self._now()

    async def encode(self, texts: Sequence[EncoderText], priority: int) -> NDArray[float32]:
        """Returns a row for each text, as `EncoderBackend.encode` makes them. To be called once: a
        request is counted with it.

        Raises:
            BackendError: they cannot be encoded now.
        """
        num_tokens = sum(len(text.token_ids) for text in texts)
        self._log_fields["prompt_tokens"] = num_tokens
        span = None if self._begin_span is None else self._begin_span()
        submitted_at = self._now()
        result: EncodedTexts | None = None
        reasons: list[str] = []
        failure: tuple[str, str] | None = None
        try:
            result = await self.model.backend.encode(texts, self.client, priority)
        except asyncio.CancelledError:
            reasons = ["abort"]
            raise
        except BaseException as error:
            failure = type(error).__name__, str(error)
            raise
        finally:
            if span is not None:
                phases = self._phases(submitted_at, result)
                span.end(GenerationEnd(reasons, num_tokens, None, None, phases, failure))
        self._note(result, num_tokens)
        return result.rows

    def _phases(self, submitted_at: float, result: EncodedTexts | None) -> list[Phase]:
        age = self._now() - submitted_at
        phases = [Phase("queue", age)]
        if result is not None:
            phases.append(Phase("prefill", age - result.queue_time))
        return phases

    def _note(self, result: EncodedTexts, num_tokens: int) -> None:
        self._log_fields["queue_ms"] = round(result.queue_time * 1000, 1)
        metrics, seconds = self.model.metrics, self._now() - self._started_at
        metrics.texts_encoded(result.queue_time, result.compute_time)
        metrics.request_finished(FinishedRequest(seconds, ("stop",), num_tokens, 0, 1, None))


def encoding_call(
    context: ApiContext,
    request: Request,
    model: ServedEncoder,
    kind: GenerationKind,
    asked_model: str | None,
    *,
    response_id: str = "",
    form: EncodingFormat | None = None,
) -> EncodingCall:
    """Returns the call of a request, whose span is noted as the request's.

    Args:
        asked_model: as the client calls it; None = not at all.
        response_id: that of the answer; "" = it has none.
        form: how vectors are asked for.
    """
    tracer = context.tracer
    if tracer is None:
        return EncodingCall(model, request.sender, request.log_fields)

    def begin() -> GenerationSpan | None:
        start = GenerationStart(
            kind,
            age=asyncio.get_running_loop().time() - request.received_at,
            request_id=request.id,
            response_id=response_id,
            asked_model=asked_model or model.info.name,
            model=model.info.name,
            params=None,
            is_streamed=False,
            trace=request.trace,
            form=form,
        )
        span = tracer.begin(start)
        if span is not None:
            request.trace = span.context
        return span

    return EncodingCall(model, request.sender, request.log_fields, begin)
