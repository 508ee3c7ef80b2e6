"""Endpoints `/images/generations` and `/images/edits`."""

from __future__ import annotations

import asyncio
import math
import os
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Final, Literal

import orjson
from msgspec import UNSET, UnsetType

from fastovms.api import offload
from fastovms.api.context import ApiContext
from fastovms.api.dialect import DIALECTS, DONE, AnswerSchema, Dialect, error_response, frame
from fastovms.api.endpoint import Operation, Route, endpoint, warning_headers
from fastovms.api.typed_body import find_of_task, hold_model
from fastovms.api.unread import unknown_warning
from fastovms.api.uploads import FormReader, Uploads, UploadSink, read_form
from fastovms.errors import Overloaded, RequestError
from fastovms.fair_queue import Shares
from fastovms.http.messages import BodySink, Request, Response, Stream, UploadHandler
from fastovms.params import Image, Task
from fastovms.parts.images.picture import Edited, ImageParams, Made, Step
from fastovms.parts.images.request import (
    Asked,
    EditFields,
    ImageFields,
    Limits,
    read_fields,
    read_form_fields,
)
from fastovms.parts.images.served import ServedImages
from fastovms.parts.media.decode import PixelBound
from fastovms.parts.media.loader import MemoryBudget
from fastovms.server_config import MediaConfig
from fastovms.system.disk import UnnamedFile
from fastovms.system.threads import DiskThreads
from fastovms.telemetry.metrics import FinishedRequest

_FILES: Final = ("image", "mask")
_MAX_VALUE: Final = 32 * 1024
"""The maximum bytes of a text field of a form."""

_PIECE: Final = 256 * 1024
"""The bytes of an event that are sent at once, because the server disconnects clients with too many
unread bytes."""

_ROOM: Final = 8
"""The number of uploads of the maximum size that may be on disk. If one client has filled them, a
quarter as many are available to other clients."""

_FIELDS: Final = frozenset(EditFields.__struct_fields__)


class ImageObject(AnswerSchema, kw_only=True):
    """An image. A request with the same fields and this `seed` generates the same image again."""

    b64_json: str
    seed: int


class ImagesObject(AnswerSchema, kw_only=True):
    """The response body: the images of a request."""

    created: int
    data: list[ImageObject]
    background: Literal["opaque"]
    output_format: Literal["png", "jpeg", "webp"]
    size: str


class ImageEvent(AnswerSchema, kw_only=True):
    """A stream event with a partial or a complete image. `image_index` is the number of the image,
    from 0."""

    type: Literal[
        "image_generation.partial_image",
        "image_generation.completed",
        "image_edit.partial_image",
        "image_edit.completed",
    ]
    b64_json: str
    created_at: int
    background: Literal["opaque"]
    output_format: Literal["png", "jpeg", "webp"]
    quality: Literal["auto"]
    size: str
    image_index: int
    partial_image_index: int | UnsetType = UNSET
    seed: int | UnsetType = UNSET


def _base64(file: bytes) -> orjson.Fragment:
    """Returns base64 as a JSON string, without scanning it for characters to escape."""
    return orjson.Fragment(b'"%b"' % file)


class _Events:
    """Sends images as stream events, in pieces, at the rate at which the client reads. Partial
    images are skipped while earlier data wait for the client."""

    def __init__(self, stream: Stream, kind: str, params: ImageParams, created: int) -> None:
        self._stream = stream
        self._kind = kind
        self._rest = {
            "created_at": created,
            "background": "opaque",
            "output_format": params.output_format,
            "quality": "auto",
            "size": f"{params.width}x{params.height}",
        }
        self._num_partials = 0
        self._pending: deque[memoryview] = deque()
        self._sent = asyncio.Event()
        stream.on_writable = self._flush

    def on_step(self, step: Step) -> None:
        if step.partial is None:
            return
        number, self._num_partials = self._num_partials, self._num_partials + 1
        if not self._pending:
            members = {"image_index": step.image, "partial_image_index": number}
            self._send("partial_image", step.partial, members)

    def on_made(self, number: int, made: Made) -> None:
        self._num_partials = 0
        self._send("completed", made.file, {"image_index": number, "seed": made.seed})

    async def finish(self) -> None:
        """Ends the stream once the client has read nearly all data."""
        self._sent.clear()
        self._flush()
        await self._sent.wait()
        self._stream.finish(DONE)

    def _send(self, what: str, file: bytes, members: dict[str, int]) -> None:
        name = f"{self._kind}.{what}"
        event = {"type": name, "b64_json": _base64(file), **self._rest, **members}
        data = memoryview(frame(orjson.dumps(event), name))
        self._pending += (data[at : at + _PIECE] for at in range(0, len(data), _PIECE))
        self._flush()

    def _flush(self) -> None:
        while self._pending and self._stream.writable:
            self._stream.send(bytes(self._pending.popleft()))
        if not self._pending:
            self._sent.set()


class Images:
    """The handlers of `/images/generations` and `/images/edits`."""

    def __init__(self, context: ApiContext, media: MediaConfig) -> None:
        self._context = context
        self._media = media
        self._uploads = Uploads()
        self._threads = DiskThreads("pictures")
        most = _ROOM * len(_FILES) * media.max_image_bytes
        self._uploaded = Shares(most, most + most // 4)
        self._budget = MemoryBudget(media.max_image_memory)

    async def generate(self, request: Request, dialect: Dialect) -> Response | None:
        """Answers `POST /images/generations`. Raises RequestError or BackendError if the request
        fails."""
        body = await self._context.bodies.read(request, ImageFields)
        asked = read_fields(body)
        model, limits = await self._model(request, asked, dialect, edits=False)
        params = limits.params(asked, self._seed(), None)
        return await self._make(request, model, asked, params, None)

    def open_upload(self, request: Request, dialect: Dialect) -> BodySink | Response:
        """Returns the sink for an upload's body, or an error response if its headers are
        refused."""
        read = partial(
            FormReader,
            path=None,
            max_size=self._media.max_image_bytes,
            max_value=_MAX_VALUE,
            files=_FILES,
        )
        try:
            return self._uploads.open(request, self._threads, self._uploaded, read, dialect)
        except (RequestError, Overloaded) as error:
            return error_response(error, dialect)

    async def edit(self, request: Request, dialect: Dialect) -> Response | None:
        """Answers `POST /images/edits`. Raises RequestError or BackendError if the request
        fails."""
        sink = request.sink
        assert isinstance(sink, UploadSink)
        form = await read_form(sink, dialect)
        if isinstance(form, Response):
            return form
        asked = read_fields(read_form_fields(form.fields))
        if names := form.unknown(_FIELDS):
            request.warnings = (unknown_warning(names),)
        has_mask = "mask" in form.unnamed
        model, limits = await self._model(request, asked, dialect, edits=True, has_mask=has_mask)
        decode = partial(self._decode, request, model)
        picture = await decode(form.unnamed["image"], "image")
        mask = await decode(form.unnamed["mask"], "mask") if has_mask else None
        params = limits.params(asked, self._seed(), picture)
        return await self._make(request, model, asked, params, Edited(picture, mask))

    async def _model(
        self,
        request: Request,
        asked: Asked,
        dialect: Dialect,
        *,
        edits: bool,
        has_mask: bool = False,
    ) -> tuple[ServedImages, Limits]:
        """Returns the model of a request, and the model's limits. Raises InvalidField if the
        request exceeds them."""
        models = self._context.models
        known = find_of_task(asked.body.model, Task.IMAGES, models, dialect)
        request.log_fields.update(model=known.name, stream=asked.streams)
        if asked.warnings:
            ignored = f"ignored: {', '.join(asked.warnings)}"
            request.warnings = (*request.warnings, ignored)
        model = await hold_model(request, known, models, (Task.IMAGES,), streams=asked.streams)
        assert isinstance(model, ServedImages)
        backend = model.backend
        limits = Limits(model.config, backend.abilities, known.name, backend.last_step)
        limits.check_use(edits=edits, has_mask=has_mask)
        limits.check(asked)
        return model, limits

    def _seed(self) -> int:
        return int(self._context.new_id()[:8], 16)

    async def _decode(
        self, request: Request, model: ServedImages, file: UnnamedFile, name: str
    ) -> Image:
        bound = PixelBound(math.prod(model.config.resolution or model.config.max_resolution))
        decode = partial(model.decoder.decode, is_mask=name == "mask")
        limit = self._media.max_image_pixels

        def run() -> Image:
            data = os.pread(file.descriptor, self._media.max_image_bytes, 0)
            return self._budget.decoded(decode, data, name, limit, bound)

        return await model.decoding.run(request.sender, run)

    async def _check_prompts(
        self, request: Request, model: ServedImages, params: ImageParams
    ) -> None:
        """Adds a warning for each prompt that the model truncates."""
        info = model.backend.abilities
        length = params.max_sequence_length or info.max_sequence_length
        cost = len(params.prompt) + sum(map(len, params.further.values()))
        cut = await offload.run(partial(model.prompts.cut, params, length), cost)
        warnings = [f"{name} is cut: the model reads {read} tokens" for name, read in cut.items()]
        request.warnings = (*request.warnings, *warnings)

    async def _make(
        self,
        request: Request,
        model: ServedImages,
        asked: Asked,
        params: ImageParams,
        edited: Edited | None,
    ) -> Response | None:
        await self._check_prompts(request, model, params)
        if asked.streams and request.early_stream is None:
            request.open_early()
        created = int(self._context.unix_time())
        kind = "image_generation" if edited is None else "image_edit"
        events: _Events | None = None
        if asked.streams:
            stream = request.stream(headers=warning_headers((), request))
            events = _Events(stream, kind, params, created)
        size = f"{params.width}x{params.height}"
        request.log_fields["size"] = size

        def on_step(step: Step) -> None:
            request.progress = step.num_done, step.num_all
            request.log_fields.update(steps_done=step.num_done, steps=step.num_all)
            if events is not None:
                events.on_step(step)

        found = await model.backend.make(
            params,
            edited,
            asked.num_images,
            num_partials=asked.num_partials,
            client=request.sender,
            request_id=request.id,
            on_step=on_step,
            on_made=events.on_made if events is not None else lambda number, made: None,
        )
        request.log_fields["queue_ms"] = round(found.queue_time * 1000, 1)
        model.metrics.texts_encoded(found.queue_time, found.compute_time)
        took = asyncio.get_running_loop().time() - request.received_at
        ends = ("stop",) * asked.num_images
        model.metrics.request_finished(FinishedRequest(took, ends, 0, 0, asked.num_images, None))
        if events is not None:
            await events.finish()
            return None
        data = [{"b64_json": _base64(made.file), "seed": made.seed} for made in found.images]
        answer = {
            "created": created,
            "data": data,
            "background": "opaque",
            "output_format": params.output_format,
            "size": size,
        }
        return Response(200, orjson.dumps(answer))


_GENERATION: Final = Operation(
    "Generates images of a text.",
    ImagesObject,
    "Images",
    body=ImageFields,
    required=("prompt",),
    events=ImageEvent,
    examples={
        "One image": {"prompt": "A lighthouse at dusk", "size": "512x512", "seed": 1},
        "Few steps, streamed": {
            "prompt": "A lighthouse at dusk",
            "num_inference_steps": 8,
            "stream": True,
            "partial_images": 2,
        },
    },
)
_EDIT: Final = Operation(
    "Edits a picture: all of it, or where the mask is transparent or white.",
    ImagesObject,
    "Images",
    body=EditFields,
    body_type="multipart/form-data",
    required=("image", "prompt"),
    events=ImageEvent,
)


def endpoints(context: ApiContext, media: MediaConfig) -> Iterator[Route]:
    """Yields the routes of image models."""
    images = Images(context, media)
    for dialect in DIALECTS:
        handler = UploadHandler(
            partial(images.open_upload, dialect=dialect), endpoint(images.edit, dialect)
        )
        generate = endpoint(images.generate, dialect)
        for prefix in dialect.prefixes:
            yield Route("POST", f"{prefix}/images/generations", generate, _GENERATION)
            yield Route("POST", f"{prefix}/images/edits", handler, _EDIT)
