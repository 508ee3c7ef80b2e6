"""Completions and chats by FastAPI with pydantic models on uvicorn, around the null engine.

It is written as such servers are: a pydantic model a body, a queue a request, a pydantic model and
a line by hand an event. It does what `bench.http requests` asks for and no more: one text a
request, no metrics, no log, no stop strings, no calls. Started by `bench.http`, or by hand:
`python -m bench.null_engine.fastapi_server --port 8000`.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import FastAPI, HTTPException
from fastapi.responses import Response, StreamingResponse

from bench.null_engine import pydantic_bodies as bodies
from bench.null_engine.null_server import arguments, null_models
from fastovms.api.request_schemas import ChatRequest, CompletionRequest
from fastovms.api.served import ServedModel
from fastovms.config import ApiConfig
from fastovms.params import GenerationOutput, GenerationRequest, SamplingParams

if TYPE_CHECKING:
    CompletionBody = Any  # both are made as this module is imported
    ChatBody = Any
else:
    CompletionBody = bodies.pydantic_model(CompletionRequest)
    ChatBody = bodies.pydantic_model(ChatRequest)

FINGERPRINT = "fastapi"
DEFAULT_MAX_TOKENS = 16


class Peer:
    """The handlers, for one model."""

    def __init__(self, model: ServedModel, config: ApiConfig) -> None:
        self._model = model
        self._config = config

    async def models(self) -> dict[str, Any]:
        return {"object": "list", "data": [{"id": self._model.info.name, "object": "model"}]}

    async def complete(self, body: CompletionBody) -> Response:
        self._check(body)
        prompt = body.prompt
        if isinstance(prompt, str):
            token_ids = self._model.tokenizer.encode(prompt)
        elif isinstance(prompt, list) and all(type(token) is int for token in prompt):
            token_ids = prompt
        else:
            raise HTTPException(400, "prompt must be a text or token ids")
        requested = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
        params = self._params(body, requested, token_ids)
        envelope = self._envelope("cmpl-", "text_completion")
        if body.stream:
            return _event_stream(self._completion_events(envelope, token_ids, params))
        text, reason, num_tokens = await self._whole(token_ids, params)
        choice = bodies.CompletionChoice(
            index=0, text=text, logprobs=None, finish_reason=reason, stop_reason=None
        )
        usage = _usage(len(token_ids), num_tokens)
        return _json(bodies.Completion(**envelope, choices=[choice], usage=usage))

    async def chat(self, body: ChatBody) -> Response:
        self._check(body)
        if not body.messages or isinstance(body.messages, str):
            raise HTTPException(400, "messages must be a list of at least one message")
        template = self._model.chat.template
        assert template is not None
        messages = [message.model_dump(exclude_none=True) for message in body.messages]
        prompt = template.render(messages)
        token_ids = self._model.tokenizer.encode(prompt, add_special_tokens=False)
        params = self._params(body, body.max_completion_tokens or body.max_tokens, token_ids)
        if body.stream:
            envelope = self._envelope("chatcmpl-", "chat.completion.chunk")
            return _event_stream(self._chat_events(envelope, token_ids, params))
        envelope = self._envelope("chatcmpl-", "chat.completion")
        text, reason, num_tokens = await self._whole(token_ids, params)
        message = bodies.ChatMessage(role="assistant", content=text, refusal=None)
        choice = bodies.ChatChoice(
            index=0, message=message, logprobs=None, finish_reason=reason, stop_reason=None
        )
        usage = _usage(len(token_ids), num_tokens)
        usage.completion_tokens_details = bodies.ReasoningTokens(reasoning_tokens=0)
        return _json(bodies.ChatCompletion(**envelope, choices=[choice], usage=usage))

    def _check(self, body: CompletionBody | ChatBody) -> None:
        """What ranges and types do not say."""
        config, info = self._config, self._model.info
        if body.model is not None and body.model != info.name:
            raise HTTPException(404, f"The model `{body.model}` does not exist.")
        if body.stream_options is not None and not body.stream:
            raise HTTPException(400, "stream_options is only allowed when stream is true")
        stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
        if len(stop) > config.max_stop_strings:
            raise HTTPException(400, "stop has too many strings")
        if any(not 0 < len(string) <= config.max_stop_length for string in stop):
            raise HTTPException(400, "a string of stop is empty or too long")
        for key, bias in (body.logit_bias or {}).items():
            if not key.isdigit() or int(key) >= info.vocab_size or not -100 <= bias <= 100:
                raise HTTPException(400, "logit_bias is out of range")
        for name in ("allowed_token_ids", "stop_token_ids"):
            if any(not 0 <= token < info.vocab_size for token in getattr(body, name) or ()):
                raise HTTPException(400, f"{name} is out of range")

    def _params(
        self, body: CompletionBody | ChatBody, max_tokens: int | None, token_ids: Sequence[int]
    ) -> SamplingParams:
        info = self._model.info
        room = info.max_model_len - len(token_ids)
        if not token_ids or room <= 0:
            raise HTTPException(400, "the prompt is empty or too long")
        if any(not 0 <= token < info.vocab_size for token in token_ids):
            raise HTTPException(400, "the prompt has a token that is none")
        num_tokens = room if max_tokens is None else min(max_tokens, room)
        if (body.min_tokens or 0) > num_tokens:
            raise HTTPException(400, "min_tokens must be at most max_tokens")
        return SamplingParams(
            max_tokens=num_tokens,
            temperature=1.0 if body.temperature is None else body.temperature,
            top_p=1.0 if body.top_p is None else body.top_p,
            top_k=max(body.top_k or 0, 0),
            min_p=body.min_p or 0.0,
            seed=body.seed,
            ignore_eos=bool(body.ignore_eos),
            eos_token_ids=info.eos_token_ids,
            stop_token_ids=frozenset(body.stop_token_ids or ()),
            min_tokens=body.min_tokens or 0,
            repetition_penalty=body.repetition_penalty or 1.0,
            frequency_penalty=body.frequency_penalty or 0.0,
            presence_penalty=body.presence_penalty or 0.0,
        )

    def _envelope(self, prefix: str, kind: str) -> dict[str, Any]:
        return {
            "id": f"{prefix}{uuid.uuid4().hex}",
            "object": kind,
            "created": int(time.time()),
            "model": self._model.info.name,
            "system_fingerprint": FINGERPRINT,
        }

    async def _texts(
        self, token_ids: Sequence[int], params: SamplingParams
    ) -> AsyncIterator[tuple[str, str | None, int]]:
        """The text of each step, why it is the last one, and how many tokens there are by then."""
        queue: asyncio.Queue[GenerationOutput] = asyncio.Queue()
        request_id = uuid.uuid4().hex
        detokenizer = self._model.tokenizer.detokenizer(continues=True)
        backend = self._model.backend
        backend.submit(GenerationRequest(request_id, token_ids, params), queue.put_nowait)
        try:
            while True:
                output = await queue.get()
                text = detokenizer.push(output.token_ids)
                if output.finish_reason is None:
                    yield text, None, output.num_generated_tokens
                    continue
                text += detokenizer.flush()
                yield text, output.finish_reason.value, output.num_generated_tokens
                return
        finally:
            backend.abort(request_id)

    async def _whole(
        self, token_ids: Sequence[int], params: SamplingParams
    ) -> tuple[str, str | None, int]:
        steps = [step async for step in self._texts(token_ids, params)]
        _, reason, num_tokens = steps[-1]
        return "".join([text for text, _, _ in steps]), reason, num_tokens

    async def _completion_events(
        self, envelope: dict[str, Any], token_ids: Sequence[int], params: SamplingParams
    ) -> AsyncIterator[str]:
        async for text, reason, _ in self._texts(token_ids, params):
            choice = bodies.CompletionChoice(
                index=0, text=text, logprobs=None, finish_reason=reason, stop_reason=None
            )
            yield _event(bodies.CompletionChunk(**envelope, choices=[choice]))
        yield "data: [DONE]\n\n"

    async def _chat_events(
        self, envelope: dict[str, Any], token_ids: Sequence[int], params: SamplingParams
    ) -> AsyncIterator[str]:
        def chunk(delta: bodies.ChatDelta, **members: Any) -> str:
            choice = bodies.ChatChunkChoice(
                index=0, delta=delta, logprobs=None, **{"finish_reason": None, **members}
            )
            return _event(bodies.ChatChunk(**envelope, choices=[choice]))

        yield chunk(bodies.ChatDelta(role="assistant", content=""))
        async for text, reason, _ in self._texts(token_ids, params):
            yield chunk(bodies.ChatDelta(content=text))
            if reason is not None:
                yield chunk(bodies.ChatDelta(), finish_reason=reason, stop_reason=None)
        yield "data: [DONE]\n\n"


def _usage(num_prompt_tokens: int, num_tokens: int) -> bodies.Usage:
    return bodies.Usage(
        prompt_tokens=num_prompt_tokens,
        completion_tokens=num_tokens,
        total_tokens=num_prompt_tokens + num_tokens,
        prompt_tokens_details=bodies.CachedTokens(cached_tokens=0),
    )


def _json(answer: bodies.Envelope) -> Response:
    """The quickest way there is: FastAPI's own would validate the answer once more."""
    content = answer.model_dump_json(exclude_unset=True)
    return Response(content, media_type="application/json")


def _event(chunk: bodies.Envelope) -> str:
    return f"data: {chunk.model_dump_json(exclude_unset=True)}\n\n"


def _event_stream(events: AsyncIterator[str]) -> StreamingResponse:
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)


def main() -> None:
    chosen = arguments("python -m bench.null_engine.fastapi_server", __doc__)
    [model] = null_models(chosen.step, encodes=not chosen.null_tokenizer)
    assert isinstance(model, ServedModel)
    peer = Peer(model, ApiConfig())
    app = FastAPI()
    app.add_api_route("/v1/models", peer.models)
    app.add_api_route("/v1/completions", peer.complete, methods=["POST"])
    app.add_api_route("/v1/chat/completions", peer.chat, methods=["POST"])
    uvicorn.run(
        app,
        host=chosen.host,
        port=chosen.port,
        http="httptools",
        loop="uvloop",
        lifespan="off",
        log_level="warning",
        access_log=False,
    )


if __name__ == "__main__":
    main()
