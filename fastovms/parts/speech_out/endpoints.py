"""Endpoints `/audio/speech`, `/audio/voices` and `/audio/models`: speech synthesis."""

from __future__ import annotations

import asyncio
import base64
import unicodedata
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

import orjson
from msgspec import UNSET, Struct, UnsetType

from fastovms.api.body import one_of, wrong
from fastovms.api.context import ApiContext
from fastovms.api.dialect import (
    DIALECTS,
    DONE,
    OVMS,
    AnswerSchema,
    Dialect,
    frame,
    log_fields_of,
)
from fastovms.api.endpoint import Operation, Route, endpoint, json_response, warning_headers
from fastovms.api.request_schemas import ModelField
from fastovms.api.typed_body import check_task, find_of_task, hold_model
from fastovms.errors import InvalidField
from fastovms.http.messages import Request, Response, Stream
from fastovms.params import Task
from fastovms.parts.speech_out.backend import SpokenPiece
from fastovms.parts.speech_out.encode import FORMATS, encoder_of, encodes, with_size
from fastovms.parts.speech_out.sentences import sentences
from fastovms.parts.speech_out.served import MAX_INPUT, ServedSpeaker
from fastovms.parts.speech_out.worker import SpeakText
from fastovms.telemetry.metrics import FinishedRequest

_PIECE: Final = 64 * 1024
"""The bytes of audio that are sent at once; the next ones are sent when the client has read
these."""

_OPENAI_VOICES: Final = frozenset(
    (
        *("alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx"),
        *("sage", "shimmer", "verse", "unused"),
    )
)
"""Voices of OpenAI, and of OVMS's demos. Clients send them by default, so the model's default voice
is used instead, with a warning."""

_SCRIPTS: Final[Mapping[str, tuple[str, ...]]] = {"hi": ("DEVANAGARI", "LATIN")}
"""The scripts of languages that are not written in the Latin script alone, by the names in
Unicode."""


class VoiceId(Struct, frozen=True, kw_only=True):
    """A voice, given by its id."""

    id: str


class SpeechFields(ModelField, frozen=True, kw_only=True):
    """The body of `POST /audio/speech`."""

    input: str | None = None
    voice: str | VoiceId | None = None
    response_format: str | None = None
    speed: float | None = None
    stream_format: str | None = None
    instructions: str | None = None
    language: str | None = None


class SpeechUsage(AnswerSchema, kw_only=True):
    """The usage of a request; `input_tokens` counts characters, and audio has no tokens."""

    input_tokens: int
    output_tokens: int
    total_tokens: int


class SpeechEvent(AnswerSchema, kw_only=True):
    """An event of streamed audio: its next bytes in base64, or its end."""

    type: Literal["speech.audio.delta", "speech.audio.done"]
    audio: str | UnsetType = UNSET
    usage: SpeechUsage | UnsetType = UNSET


class VoiceObject(AnswerSchema, kw_only=True):
    """A voice. `language` is absent if the model does not distinguish languages."""

    id: str
    name: str
    model: str
    language: str | UnsetType = UNSET


class VoiceList(AnswerSchema, kw_only=True):
    """The voices of the speech synthesis models in memory."""

    object: Literal["list"] = "list"
    voices: list[VoiceObject]


class SpeakerObject(AnswerSchema, kw_only=True):
    """A speech synthesis model."""

    id: str


class SpeakerList(AnswerSchema, kw_only=True):
    """The speech synthesis models."""

    object: Literal["list"] = "list"
    models: list[SpeakerObject]


@dataclass(frozen=True, slots=True)
class _Asked:
    """The fields of a request that are checked without the model.

    Attributes:
        texts: the sentences.
        format: one of `FORMATS`.
        voice, language: "" = not given.
        has_events: whether the audio is sent in events.
        is_whole: whether the response is sent at once, so that its header has the size.
    """

    texts: list[str]
    num_chars: int
    format: str
    voice: str
    language: str
    speed: float
    has_events: bool
    is_whole: bool


def _read(body: SpeechFields, dialect: Dialect) -> _Asked:
    """Returns the fields of a request. Raises InvalidField if a field is invalid."""
    text = body.input
    if text is None:
        raise InvalidField("input is required", param="input")
    if len(text) > MAX_INPUT:
        raise InvalidField(
            f"input must have at most {MAX_INPUT} characters, not {len(text)}", param="input"
        )
    if not any(map(str.isalnum, text)):
        raise wrong("input", "a text with letters or digits", text)
    # OVMS has no formats.
    default = "wav" if dialect is OVMS else "mp3"
    format = one_of(body.response_format or default, FORMATS, "response_format")
    if not encodes(format):
        raise InvalidField(
            f"response_format must be wav or pcm, not {format}: this server was installed without "
            "the extra speech",
            param="response_format",
        )
    how = body.stream_format
    if how is not None:
        one_of(how, ("audio", "sse"), "stream_format")
    voice = body.voice.id if isinstance(body.voice, VoiceId) else body.voice
    return _Asked(
        sentences(text),
        len(text),
        format,
        voice or "",
        (body.language or "").lower(),
        1.0 if body.speed is None else body.speed,
        has_events=how == "sse",
        is_whole=how is None and format == "wav",
    )


def _spoken(
    asked: _Asked, instructions: str | None, model: ServedSpeaker, request: Request
) -> list[SpeakText]:
    """Returns the sentences for the model. Raises InvalidField for options that the model does not
    support."""
    name, languages = model.info.name, model.backend.speaker.languages
    if instructions:
        raise InvalidField(
            f"instructions must be empty: the model {name} does not support them",
            param="instructions",
        )
    voice = asked.voice or next(iter(model.voices))
    if voice not in model.voices:
        if voice not in _OPENAI_VOICES:
            raise wrong("voice", f"one of {', '.join(model.voices)}", voice)
        voice = next(iter(model.voices))
        warning = f"the model {name} has no voice {asked.voice}: {voice} speaks"
        request.warnings = (*request.warnings, warning)
    if not languages:
        if asked.language:
            raise InvalidField(
                f"language must be absent: the model {name} speaks only one language",
                param="language",
            )
        if asked.speed != 1:
            raise InvalidField(
                f"speed must be 1: the model {name} supports only this speed", param="speed"
            )
        return [SpeakText(text, voice) for text in asked.texts]
    low, high = model.config.min_speed, model.config.max_speed
    if not low <= asked.speed <= high:
        raise wrong("speed", f"a number from {low:g} to {high:g}", asked.speed)
    language = asked.language or model.voices[voice]
    if language not in languages:
        if asked.language:
            raise wrong("language", f"one of {', '.join(languages)}", language)
        raise InvalidField(
            f"voice {voice} speaks {language}, which the model {name} cannot speak here: it speaks "
            f"{', '.join(languages)}",
            param="voice",
        )
    _check_script("".join(asked.texts), language)
    return [SpeakText(text, voice, asked.speed, language) for text in asked.texts]


def _check_script(text: str, language: str) -> None:
    """Raises InvalidField if a letter does not belong to the language's scripts: it has no phonemes
    and would be silently left out."""
    scripts = _SCRIPTS.get(language, ("LATIN",))
    for letter in sorted(set(text)):
        if letter.isascii() or not letter.isalpha() or unicodedata.category(letter) == "Lm":
            continue
        script = unicodedata.name(letter, "UNKNOWN").partition(" ")[0]
        if script not in scripts and unicodedata.normalize("NFKC", letter) == letter:
            raise InvalidField(
                f"input must be a text in {language}: {letter!r} is a letter of another script "
                f"({script.lower()})",
                param="input",
            )


class _Sender:
    """Sends audio at the rate at which the client reads."""

    def __init__(self, stream: Stream, *, has_events: bool) -> None:
        self._stream = stream
        self._has_events = has_events
        self._writable = asyncio.Event()
        stream.on_writable = self._writable.set

    async def send(self, data: bytes) -> None:
        for start in range(0, len(data), _PIECE):
            while not self._stream.writable and not self._stream.closed:
                self._writable.clear()
                await self._writable.wait()
            piece = data[start : start + _PIECE]
            if self._has_events:
                audio = base64.b64encode(piece).decode()
                piece = frame(orjson.dumps({"type": "speech.audio.delta", "audio": audio}))
            self._stream.send(piece)

    def finish(self, num_chars: int) -> None:
        if not self._has_events:
            self._stream.finish()
            return
        usage = {"input_tokens": num_chars, "output_tokens": 0, "total_tokens": num_chars}
        done = {"type": "speech.audio.done", "usage": usage}
        self._stream.finish(frame(orjson.dumps(done)) + DONE)


async def answer_speech(context: ApiContext, request: Request, dialect: Dialect) -> Response | None:
    """Answers `POST /audio/speech`. Raises RequestError or BackendError if the request fails before
    the first audio."""
    body = await context.bodies.read(request, SpeechFields)
    known = find_of_task(body.model, Task.SPEECH_OUT, context.models, dialect)
    check_task(known, (Task.SPEECH_OUT,))
    asked = _read(body, dialect)
    request.log_fields.update(model=known.name, stream=not asked.is_whole)
    model = await hold_model(
        request, known, context.models, (Task.SPEECH_OUT,), streams=asked.has_events
    )
    assert isinstance(model, ServedSpeaker)
    spoken = _spoken(asked, body.instructions, model, request)
    encoder = encoder_of(asked.format, model.backend.speaker.rate)
    encode = lambda samples, is_last: encoder.add(samples, is_last=is_last)  # noqa: E731
    if asked.has_events and request.early_stream is None:
        request.open_early()
    async with (
        aclosing(model.backend.speak(spoken, encode, request.sender)) as pieces,
        aclosing(_counted(request, model, asked, pieces)) as counted,
    ):
        if asked.is_whole:
            data = b"".join([piece async for piece in counted])
            return Response(200, with_size(data), FORMATS[asked.format].media_type)
        await _stream(request, asked, counted)
        return None


async def _counted(
    request: Request, model: ServedSpeaker, asked: _Asked, pieces: AsyncIterator[SpokenPiece]
) -> AsyncGenerator[bytes, None]:
    """Yields the audio of pieces, and records usage and times. Raises InvalidField before any audio
    if there are no pieces."""
    seconds = waited = computed = 0.0
    data = b""
    try:
        async for piece in pieces:
            seconds += piece.seconds
            waited += piece.queue_time
            computed += piece.compute_time
            data += piece.data
            if seconds:
                yield data
                data = b""
    finally:
        request.log_fields["audio_seconds"] = round(seconds, 1)
        request.log_fields["queue_ms"] = round(waited * 1000, 1)
        request.caller.charge(asked.num_chars)
    if not seconds:
        raise InvalidField(
            f"input has nothing that the model {model.info.name} can speak", param="input"
        )
    model.metrics.texts_encoded(waited, computed)
    took = asyncio.get_running_loop().time() - request.received_at
    model.metrics.request_finished(FinishedRequest(took, ("stop",), asked.num_chars, 0, 1, None))


async def _stream(request: Request, asked: _Asked, pieces: AsyncIterator[bytes]) -> None:
    """Sends audio as it is generated. After an error the connection is cut, so that clients notice
    that the audio is incomplete."""
    sender: _Sender | None = None
    stream: Stream | None = None
    headers = warning_headers((), request)
    try:
        async for data in pieces:
            if not data:
                continue
            if stream is None or sender is None:
                stream = request.stream(
                    content_type=FORMATS[asked.format].media_type, headers=headers, ping=False
                )
                sender = _Sender(stream, has_events=asked.has_events)
            await sender.send(data)
    except Exception as error:
        if stream is None or asked.has_events:
            raise
        request.log_fields.update(log_fields_of(error))
        stream.abort()
        return
    assert sender is not None, "audio has bytes"
    sender.finish(asked.num_chars)


async def answer_voices(context: ApiContext, request: Request, dialect: Dialect) -> Response:
    """Returns the voices of the models in memory, for `GET /audio/voices`."""
    served = [known.served for known in context.models.known]
    voices = [
        VoiceObject(id=voice, name=voice, model=model.info.name, language=language or UNSET)
        for model in served
        if isinstance(model, ServedSpeaker)
        for voice, language in model.voices.items()
        if not language or language in model.backend.speaker.languages
    ]
    return json_response(VoiceList(voices=voices))


async def answer_models(context: ApiContext, request: Request, dialect: Dialect) -> Response:
    """Returns the speech synthesis models, for `GET /audio/models`."""
    names = [known.name for known in context.models.known if known.task is Task.SPEECH_OUT]
    return json_response(SpeakerList(models=[SpeakerObject(id=name) for name in names]))


_SPEECH: Final = Operation(
    "Speaks a text.",
    bytes,
    "Audio",
    media_type="audio/mpeg",
    body=SpeechFields,
    required=("input",),
    events=SpeechEvent,
    examples={"A sentence": {"input": "The quick brown fox.", "response_format": "wav"}},
)
_VOICES: Final = Operation(
    "Lists the voices of the models in memory that speak.", VoiceList, "Audio"
)
_MODELS: Final = Operation("Lists the models that speak, for Open WebUI.", SpeakerList, "Audio")


def endpoints(context: ApiContext) -> Iterator[Route]:
    """Yields the routes of speech synthesis models."""
    rows: tuple[tuple[str, str, Any, Operation], ...] = (
        ("POST", "/audio/speech", answer_speech, _SPEECH),
        ("GET", "/audio/voices", answer_voices, _VOICES),
        ("GET", "/audio/models", answer_models, _MODELS),
    )
    for dialect in DIALECTS:
        for method, path, answer, operation in rows:
            handler = endpoint(partial(answer, context), dialect)
            for prefix in dialect.prefixes:
                yield Route(method, f"{prefix}{path}", handler, operation)
