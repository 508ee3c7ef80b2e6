"""Endpoints `/audio/transcriptions` and `/audio/translations`: transcripts of uploaded speech."""

from __future__ import annotations

import asyncio
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from threading import Lock
from typing import Any, Final, Literal

import orjson
from msgspec import UNSET, UnsetType

from fastovms.api.body import one_of, wrong
from fastovms.api.context import ApiContext
from fastovms.api.dialect import DIALECTS, DONE, OVMS, AnswerSchema, Dialect, error_response, frame
from fastovms.api.endpoint import Operation, Route, endpoint
from fastovms.api.typed_body import find_of_task, hold_model
from fastovms.api.unread import unknown_warning
from fastovms.api.uploads import FormReader, Uploads, UploadSink, read_form
from fastovms.errors import InvalidField, Overloaded, RequestError
from fastovms.fair_queue import Shares
from fastovms.http.messages import BodySink, Request, Response, Stream, UploadHandler
from fastovms.params import Task
from fastovms.parts.speech.audio import AUDIO
from fastovms.parts.speech.audio_decoder import DecodedAudio
from fastovms.parts.speech.served import ServedSpeech
from fastovms.parts.speech.transcript import (
    SAMPLE_RATE,
    SpeechInfo,
    SpeechParams,
    Transcript,
    language_code,
)
from fastovms.system.disk import UnnamedFile
from fastovms.system.threads import DiskThreads
from fastovms.telemetry.metrics import FinishedRequest

FORMATS: Final = ("json", "text", "srt", "verbose_json", "vtt")
_STREAMED: Final = ("json", "text")
"""The response formats that can be streamed; their events are the same."""

_GRANULARITIES: Final = ("segment", "word")
_FLAGS: Final = {"true": True, "false": False, "1": True, "0": False, "": False}
_MAX_VALUE: Final = 16 * 1024
"""The maximum bytes of a text field, such as a prompt."""

_FORBIDDEN: Final = "<|"
"""The prefix of the special tokens of speech models."""

_MAX_SEED: Final = 2**63
_ROOM: Final = 8
"""The number of uploads of the maximum size, and of decoded audios of the maximum length, that may
be on disk. If one client has filled them, a quarter as many are available to other clients."""


class TranslationForm(AnswerSchema, kw_only=True):
    """The form fields of a translation; `file` is a part with a file name."""

    file: str
    model: str | UnsetType = UNSET
    prompt: str | UnsetType = UNSET
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] | UnsetType = UNSET
    temperature: float | UnsetType = UNSET
    seed: int | UnsetType = UNSET
    stream: bool | UnsetType = UNSET


class TranscriptionForm(TranslationForm, kw_only=True):
    """The form fields of a transcription; `file` is a part with a file name."""

    language: str | UnsetType = UNSET
    keywords: list[str] | UnsetType = UNSET
    timestamp_granularities: list[Literal["word", "segment"]] | UnsetType = UNSET


_LISTED: Final = ("include", "keywords", "timestamp_granularities")
_FIELDS: Final = frozenset((*TranscriptionForm.__struct_fields__, *_LISTED))
"""The form fields that are read."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """The checked fields of a request.

    Attributes:
        model: None = not given.
        form: the response format, one of `FORMATS`.
        has_segments, has_words: whether the response lists segments and words with their times.
    """

    model: str | None
    form: str
    streams: bool
    has_segments: bool
    has_words: bool
    params: SpeechParams


def _read(form: FormReader, dialect: Dialect, *, translates: bool) -> _Asked:
    """Returns the fields of a form. Raises InvalidField if a field is invalid."""
    fields = form.fields
    given = fields.get("response_format")
    format = "json" if given is None else one_of(given, FORMATS, "response_format")
    granularities = _list(form, "timestamp_granularities")
    for value in granularities:
        one_of(value, _GRANULARITIES, "timestamp_granularities")
    if granularities and given is None and dialect is OVMS:
        # OVMS has no response formats, and returns times whenever they are requested.
        format = "verbose_json"
    if granularities and format != "verbose_json":
        raise InvalidField(
            "timestamp_granularities needs response_format verbose_json, not " + format,
            param="timestamp_granularities",
        )
    streams = _flag(fields, "stream")
    if streams and format not in _STREAMED:
        raise wrong("response_format", f"{' or '.join(_STREAMED)} with stream", format)
    if _list(form, "include"):
        raise InvalidField(
            "include must be empty: the model gives no log probabilities", param="include"
        )
    prompt, keywords = fields.get("prompt", ""), ", ".join(_list(form, "keywords"))
    for name, text in (("prompt", prompt), ("keywords", keywords)):
        if _FORBIDDEN in text:
            raise InvalidField(f"{name} must not contain {_FORBIDDEN}", param=name)
    has_words = "word" in granularities
    has_segments = format == "verbose_json" and (not granularities or "segment" in granularities)
    params = SpeechParams(
        language=language_code(fields.get("language") or ""),
        translates=translates,
        prompt=prompt,
        keywords=keywords,
        temperature=_number(fields, "temperature", 1.0),
        seed=int(_number(fields, "seed", _MAX_SEED)),
        has_segments=has_segments or format in ("srt", "vtt"),
        has_words=has_words,
    )
    return _Asked(fields.get("model"), format, streams, has_segments, has_words, params)


def _list(form: FormReader, name: str) -> list[str]:
    return [value for value in form.lists.get(name, ()) if value]


def _flag(fields: dict[str, str], name: str) -> bool:
    text = fields.get(name, "")
    if text.lower() not in _FLAGS:
        raise wrong(name, "true or false", text)
    return _FLAGS[text.lower()]


def _number(fields: dict[str, str], name: str, most: float) -> float:
    """Returns a number from 0 to `most`; 0 = not given. Raises InvalidField if it is out of
    range."""
    text = fields.get(name, "")
    try:
        number = float(text or 0)
    except ValueError:
        number = math.nan
    if not 0 <= number <= most:
        raise wrong(name, f"a number from 0 to {most:g}", text)
    return number


def _check(asked: _Asked, info: SpeechInfo, name: str) -> None:
    """Raises InvalidField for options that the model does not support."""
    params = asked.params
    if params.translates and not info.translates:
        raise InvalidField(f"the model {name} does not translate", param="model")
    if not info.finds_times and asked.form not in _STREAMED:
        raise InvalidField(
            f"the model {name} reports no times: response_format must be "
            f"{' or '.join(_STREAMED)}, without timestamp_granularities",
            param="response_format",
        )
    if params.language is not None and params.language not in info.languages:
        allowed = ", ".join(sorted(info.languages))
        raise wrong("language", f"one of {allowed}", params.language)
    if params.has_words and not info.finds_words:
        raise InvalidField(
            f"the model {name} does not report times of words: its generation_config.json has no "
            "alignment_heads",
            param="timestamp_granularities",
        )


class AudioUsage(AnswerSchema, kw_only=True):
    """The length of the audio in seconds."""

    type: Literal["duration"]
    seconds: int


class TranscriptSegment(AnswerSchema, kw_only=True):
    """A segment of a transcript. Probabilities are always 0, because the pipeline reports none."""

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


class TranscriptWord(AnswerSchema, kw_only=True):
    """A word of a transcript."""

    word: str
    start: float
    end: float


class TranscriptObject(AnswerSchema, kw_only=True):
    """A transcript; the optional members are sent if `response_format` is `verbose_json`."""

    text: str
    usage: AudioUsage
    task: Literal["transcribe", "translate"] | UnsetType = UNSET
    language: str | UnsetType = UNSET
    duration: float | UnsetType = UNSET
    segments: list[TranscriptSegment] | UnsetType = UNSET
    words: list[TranscriptWord] | UnsetType = UNSET


class TranscriptEvent(AnswerSchema, kw_only=True):
    """An event of a streamed transcript: further text, or, at the end, the whole text."""

    type: Literal["transcript.text.delta", "transcript.text.done"]
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    usage: AudioUsage | UnsetType = UNSET


def _usage(seconds: float) -> dict[str, object]:
    return {"type": "duration", "seconds": math.ceil(seconds)}


def _answer(found: Transcript, asked: _Asked, seconds: float) -> Response:
    match asked.form:
        case "text":
            return Response(200, f"{found.text}\n".encode(), "text/plain; charset=utf-8")
        case "srt":
            return Response(200, _subtitles(found, ",", numbered=True), "application/x-subrip")
        case "vtt":
            body = b"WEBVTT\n\n" + _subtitles(found, ".", numbered=False)
            return Response(200, body, "text/vtt; charset=utf-8")
    members: dict[str, object] = {"text": found.text, "usage": _usage(seconds)}
    if asked.form == "verbose_json":
        task = "translate" if asked.params.translates else "transcribe"
        language = "en" if asked.params.translates else found.language
        members |= {"task": task, "language": language, "duration": round(seconds, 2)}
    if asked.has_segments:
        temperature = asked.params.temperature
        members["segments"] = [
            _segment(number, *segment, temperature) for number, segment in enumerate(found.segments)
        ]
    if asked.has_words:
        members["words"] = [
            {"word": word.text.strip(), "start": round(word.start, 2), "end": round(word.end, 2)}
            for word in found.words
        ]
    return Response(200, orjson.dumps(members))


def _segment(
    number: int,
    start: float,
    end: float,
    text: str,
    window: float,
    token_ids: tuple[int, ...],
    temperature: float,
) -> dict[str, object]:
    """Returns the API object of a segment. Probabilities are always 0, because the pipeline reports
    none."""
    data = text.encode()
    return {
        "id": number,
        "seek": round(window * 100),
        "start": round(start, 2),
        "end": round(end, 2),
        "text": text,
        "tokens": token_ids,
        "temperature": temperature,
        "avg_logprob": 0.0,
        "compression_ratio": round(len(data) / len(zlib.compress(data)), 3) if data else 0.0,
        "no_speech_prob": 0.0,
    }


def _subtitles(found: Transcript, mark: str, *, numbered: bool) -> bytes:
    """Returns the segments as a subtitle file.

    Args:
        mark: the separator before the milliseconds of a time.
        numbered: whether each subtitle begins with its number.
    """
    lines = []
    for number, segment in enumerate(found.segments, start=1):
        times = f"{_time(segment.start, mark)} --> {_time(segment.end, mark)}"
        head = f"{number}\n{times}" if numbered else times
        # An arrow would begin another subtitle, and an empty line would end this one.
        text = " ".join(segment.text.replace("-->", "->").split())
        lines.append(f"{head}\n{text}\n\n")
    return "".join(lines).encode()


def _time(seconds: float, mark: str) -> str:
    minutes, milliseconds = divmod(round(seconds * 1000), 60_000)
    whole, milliseconds = divmod(milliseconds, 1000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{whole:02}{mark}{milliseconds:03}"


class _Events:
    """Sends the text of a transcript as events; text is merged while the client does not read."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._pending = ""
        stream.on_writable = self._flush

    def on_text(self, text: str) -> None:
        self._pending += text
        if self._stream.writable:
            self._flush()

    def finish(self, text: str, seconds: float) -> None:
        done = {"type": "transcript.text.done", "text": text, "usage": _usage(seconds)}
        self._stream.finish(self._take() + frame(orjson.dumps(done)) + DONE)

    def _flush(self) -> None:
        if self._pending:
            self._stream.send(self._take())

    def _take(self) -> bytes:
        text, self._pending = self._pending, ""
        if not text:
            return b""
        return frame(orjson.dumps({"type": "transcript.text.delta", "delta": text}))


class _Room:
    """Counts the bytes on disk of one request's decoded audio. Thread-safe."""

    def __init__(self, shares: Shares, lock: Lock, owner: str) -> None:
        self._shares = shares
        self._lock = lock
        self._owner = owner
        self._taken = 0
        self._is_closed = False

    def take(self, num_bytes: int) -> None:
        """Counts further bytes. Raises Overloaded if the client's limit is reached, or the request
        has ended."""
        with self._lock:
            if self._is_closed or not self._shares.take(self._owner, num_bytes):
                raise Overloaded(
                    f"the storage for decoded audio is full, of which this client uses "
                    f"{self._shares.held(self._owner)} bytes; retry later"
                )
            self._taken += num_bytes

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._shares.give_back(self._owner, self._taken)


def _shares(size: int) -> Shares:
    most = _ROOM * size
    return Shares(most, most + most // 4)


class Speech:
    """The handlers of `/audio/transcriptions` and `/audio/translations`."""

    def __init__(self, context: ApiContext) -> None:
        config = context.config
        self._context = context
        self._uploads = Uploads()
        self._threads = DiskThreads("audio")
        self._uploaded = _shares(config.max_audio_size)
        self._decoded = _shares(config.max_audio_seconds * SAMPLE_RATE * 2)
        self._lock = Lock()

    def open_upload(self, request: Request, dialect: Dialect) -> BodySink | Response:
        """Returns the sink for an upload's body, or an error response if its headers are
        refused."""
        limit = self._context.config.max_audio_size
        read = partial(FormReader, path=None, max_size=limit, max_value=_MAX_VALUE, listed=_LISTED)
        try:
            return self._uploads.open(request, self._threads, self._uploaded, read, dialect)
        except (RequestError, Overloaded) as error:
            return error_response(error, dialect)

    async def answer(
        self, request: Request, dialect: Dialect, *, translates: bool
    ) -> Response | None:
        """Answers `POST /audio/transcriptions` or, if `translates` is set, `POST
        /audio/translations`. Raises RequestError or BackendError if the request fails before the
        answer begins."""
        sink = request.sink
        assert isinstance(sink, UploadSink)
        form = await read_form(sink, dialect)
        if isinstance(form, Response):
            return form
        asked = _read(form, dialect, translates=translates)
        if names := form.unknown(_FIELDS):
            request.warnings = (unknown_warning(names),)
        known = find_of_task(asked.model, Task.SPEECH, self._context.models, dialect)
        request.log_fields.update(model=known.name, stream=asked.streams)
        model = await hold_model(
            request, known, self._context.models, (Task.SPEECH,), streams=asked.streams
        )
        assert isinstance(model, ServedSpeech)
        _check(asked, model.backend.speech, known.name)
        if asked.streams and request.early_stream is None:
            request.open_early()
        room = _Room(self._decoded, self._lock, request.sender)
        try:
            audio = await self._decode(model, form.unnamed[AUDIO], room, request.sender)
            return await _transcribe(request, model, audio, asked)
        finally:
            room.close()

    async def _decode(
        self, model: ServedSpeech, file: UnnamedFile, room: _Room, client: str
    ) -> DecodedAudio:
        if model.decoder is None:
            raise InvalidField(
                f"{AUDIO} cannot be decoded: this server was installed without the extra speech",
                param=AUDIO,
            )
        limit = self._context.config.max_audio_seconds
        decode = partial(model.decoder.decode, file, limit, room.take)
        return await model.decoding.run(client, decode)


async def _transcribe(
    request: Request, model: ServedSpeech, audio: DecodedAudio, asked: _Asked
) -> Response | None:
    seconds = audio.num_samples / SAMPLE_RATE
    request.log_fields["audio_seconds"] = round(seconds, 1)
    events = _Events(request.stream()) if asked.streams else None
    found = await model.backend.transcribe(
        audio, asked.params, request.sender, events.on_text if events else lambda text: None
    )
    request.log_fields["queue_ms"] = round(found.queue_time * 1000, 1)
    request.log_fields["completion_tokens"] = found.num_tokens
    request.caller.charge(found.num_tokens)
    model.metrics.texts_encoded(found.queue_time, found.compute_time)
    took = asyncio.get_running_loop().time() - request.received_at
    model.metrics.request_finished(FinishedRequest(took, ("stop",), 0, found.num_tokens, 1, None))
    if events is None:
        return _answer(found, asked, seconds)
    events.finish(found.text, seconds)
    return None


_TRANSCRIPTION: Final = Operation(
    "Transcribes speech.",
    TranscriptObject,
    "Audio",
    body=TranscriptionForm,
    body_type="multipart/form-data",
    required=("file",),
    events=TranscriptEvent,
)
_TRANSLATION: Final = replace(
    _TRANSCRIPTION,
    summary="Transcribes speech and translates it to English.",
    body=TranslationForm,
)
_OPERATIONS: Final = {
    "/audio/transcriptions": _TRANSCRIPTION,
    "/audio/translations": _TRANSLATION,
}


def endpoints(context: ApiContext) -> Iterator[Route]:
    """Yields the routes of speech recognition models."""
    speech = Speech(context)
    for dialect, (path, operation) in product(DIALECTS, _OPERATIONS.items()):
        answer: Any = partial(speech.answer, translates=operation is _TRANSLATION)
        handler = UploadHandler(
            partial(speech.open_upload, dialect=dialect), endpoint(answer, dialect)
        )
        for prefix in dialect.prefixes:
            yield Route("POST", f"{prefix}{path}", handler, operation)
