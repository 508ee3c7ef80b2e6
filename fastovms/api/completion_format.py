"""The wire form of completions: one body, or frames whose constant parts are made only once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from fastovms.api.dialect import Dialect
from fastovms.api.errors import error_body
from fastovms.api.generate import SampleDelta, TextGeneration, Usage
from fastovms.api.schemas import StreamOptions
from fastovms.api.sse import DONE


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every part of one answer repeats."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    dialect: Dialect

    def members(self, kind: str) -> dict[str, object]:
        """The members before `choices`; `kind` is the value of `object`."""
        members: dict[str, object] = {"object": kind, "created": self.created, "model": self.model}
        if not self.dialect.has_ids:
            return members
        return {"id": self.id, **members, "system_fingerprint": self.system_fingerprint}


def usage_body(usage: Usage) -> dict[str, object]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def completion_body(
    envelope: Envelope, choices: Sequence[SampleDelta], usage: Usage
) -> dict[str, object]:
    """The unary answer. `choices` hold the whole texts, in order."""
    return {
        **envelope.members("text_completion"),
        "choices": [_choice(choice, envelope.dialect) for choice in choices],
        "usage": usage_body(usage),
    }


def _choice(delta: SampleDelta, dialect: Dialect) -> dict[str, object]:
    choice: dict[str, object] = {
        "index": delta.choice,
        "text": delta.text,
        "logprobs": None,
        "finish_reason": None if delta.finish_reason is None else delta.finish_reason.value,
    }
    if dialect.has_ids:
        choice["stop_reason"] = delta.stop_reason
    return choice


class CompletionFrames:
    """Encodes one stream (`sse.Frames`). A delta costs the encoding of its text alone."""

    def __init__(
        self,
        envelope: Envelope,
        generation: TextGeneration,
        options: StreamOptions,
        *,
        echoes: Sequence[str],
    ) -> None:
        """`echoes` stand before each choice's text."""
        self._dialect = envelope.dialect
        self._generation = generation
        self._include_usage = options.include_usage
        self._continuous = options.include_usage and options.continuous_usage_stats
        self._echoes = list(echoes)
        members = orjson.dumps(envelope.members(envelope.dialect.stream_object))
        self._head = b"data: " + members[:-1] + b',"choices":['
        self._choice_heads = [
            self._head + b'{"index":%d,"text":' % index for index in range(len(echoes))
        ]
        self._tail = self._end_of_choice(SampleDelta(0, ""), None)

    def delta(self, delta: SampleDelta) -> bytes:
        choice = delta.choice
        text = delta.text
        if echo := self._echoes[choice]:
            text = echo + text
            self._echoes[choice] = ""
        tail = self._tail
        if delta.finish_reason is not None or self._continuous:
            usage = self._generation.usage_of(choice) if self._continuous else None
            tail = self._end_of_choice(delta, usage)
        return self._choice_heads[choice] + orjson.dumps(text) + tail

    def end(self) -> bytes:
        if not self._include_usage:
            return DONE
        usage = orjson.dumps(usage_body(self._generation.usage))
        return self._head + b'],"usage":' + usage + b"}\n\n" + DONE

    def failure(self, error: Exception) -> bytes:
        return b"data: " + error_body(error, self._dialect) + b"\n\n" + DONE

    def _end_of_choice(self, delta: SampleDelta, usage: Usage | None) -> bytes:
        reason = None if delta.finish_reason is None else delta.finish_reason.value
        tail = b',"logprobs":null,"finish_reason":' + orjson.dumps(reason)
        if self._dialect.has_ids:
            tail += b',"stop_reason":' + orjson.dumps(delta.stop_reason)
        tail += b"}]"
        if self._include_usage:
            tail += b',"usage":' + orjson.dumps(None if usage is None else usage_body(usage))
        return tail + b"}\n\n"
