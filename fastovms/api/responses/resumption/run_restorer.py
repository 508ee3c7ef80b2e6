"""Makes a run again of what is kept of one whose process has ended, or the record that it has
failed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import chain
from typing import Final

import orjson

from fastovms.api.generation.context import ApiContext
from fastovms.api.generation.envelope import Envelope
from fastovms.api.request.prompting.preparation import Preparation
from fastovms.api.request.prompting.prompts import Prompt
from fastovms.api.responses.answering import answering
from fastovms.api.responses.background import BackgroundRun, KeptFor
from fastovms.api.responses.input.response_fields import read_fields
from fastovms.api.responses.output.events import interrupted_events
from fastovms.api.responses.output.response_object import ResponseStatus
from fastovms.api.responses.responses_job import names_of, prepare
from fastovms.api.responses.resumption.kept_job import (
    ANY_FILES,
    model_key,
    numbered_ids,
    read_job,
)
from fastovms.api.responses.resumption.kept_outputs import unpack_outputs
from fastovms.api.responses.stored.event_log import EventLog
from fastovms.api.responses.stored.history import History, history_again
from fastovms.api.responses.stored.records import done_items, to_items
from fastovms.api.serving.served import ServedModel
from fastovms.api.wire.dialect import DIALECTS, OPENAI, Dialect
from fastovms.errors import FastovmsError
from fastovms.params import GenerationOutput
from fastovms.state.store import (
    CutResponse,
    EventPack,
    ResponseKey,
    Resumption,
    StateStore,
    StoredResponse,
)

_DIALECTS: Final = {dialect.name: dialect for dialect in DIALECTS}

_EARLIER: Final = 1
"""By how much a request that is gone on with runs before its equals: it came before all that wait
now."""

_HEARD_AT_ONCE: Final = 64
"""How many outputs are heard again before others have their turn."""


class CannotGoOn(FastovmsError):
    """Nobody will be able to go on with a response. The text says why."""


class RunRestorer:
    """Makes runs again, as one server can."""

    def __init__(self, context: ApiContext, store: StateStore) -> None:
        self._context = context
        self._store = store

    def models(self) -> list[str]:
        """Returns what identifies the models, in memory or not, whose responses this server can go
        on with."""
        known = self._context.models.known
        identified = [model_key(one.fingerprint, one.name) for one in known if one.is_identified]
        return [*identified, *(model_key(ANY_FILES, one.name) for one in known)]

    @asynccontextmanager
    async def held(self, key: str) -> AsyncIterator[ServedModel]:
        """Has a model in memory during an `async with` statement, for which it is loaded where it
        is not.

        Args:
            key: see `model_key`.

        Raises:
            CannotGoOn: there is no such model any more.
            BackendError: it cannot be loaded now.
        """
        name = key.partition(" ")[2]
        models = self._context.models
        known = models.get(name)
        if known is None:
            raise CannotGoOn(f"the model {name} is no longer served since the response was begun")
        release = None if models.holder is None else await models.holder.hold(known.name)
        try:
            model = known.served
            keys = [model_key(files, name) for files in (known.fingerprint, ANY_FILES)]
            if not isinstance(model, ServedModel) or key not in keys:
                raise CannotGoOn(f"the model {name} has changed since the response was begun")
            yield model
        finally:
            if release is not None:
                release()

    async def restored(
        self, key: ResponseKey, cut: CutResponse, model: ServedModel
    ) -> BackgroundRun:
        """Makes the run of a response again.

        Raises:
            CannotGoOn: nobody can.
            RequestError: the model, or this server, no longer takes the request.
        """
        try:
            job = read_job(cut.job)
            outputs = _said(cut.packs)
            log = EventLog()
            _extend(log, cut)
        except ValueError as error:
            raise CannotGoOn(f"the response cannot be gone on with: {error}") from error
        context = self._context
        dialect = _DIALECTS[job.dialect]
        preparation = Preparation(
            job.body,
            len(cut.job),
            model,
            dialect,
            context.config,
            names_of(job.body),
            key.tenant,
            priority=(job.body.priority or 0) - _EARLIER,
        )
        fields = read_fields(job.body, dialect, keeps=True)
        if job.prompt_token_ids:  # what came before the input is in the prompt
            history = History((), (), len(cut.job))
            prompt = Prompt(job.prompt_token_ids, job.prompt_text)
        else:
            history = await history_again(fields, model.info, cut.input, key.tenant, self._store)
            prompt = None
        prepared = await prepare(preparation, fields, history, prompt)
        envelope = Envelope(
            key.id, job.created, model.info.name, context.system_fingerprint, dialect
        )
        generation, run = answering(
            context,
            envelope,
            fields,
            prepared,
            numbered_ids(job.id_key),
            request_id=context.new_id(),
            log_fields={},
        )
        background = BackgroundRun(
            run,
            generation,
            cut.input,
            KeptFor(key.tenant, fields.conversation_id),
            self._store,
            Resumption(model_key(model.info.fingerprint, model.info.name), cut.job),
            log,
            _ahead(cut, log),
        )
        for start in range(0, len(outputs), _HEARD_AT_ONCE):
            background.hear(outputs[start : start + _HEARD_AT_ONCE])
            await asyncio.sleep(0)  # others are served first
        return background

    async def end(self, key: ResponseKey, status: ResponseStatus) -> None:
        """Keeps a response as failed or cancelled, with what it has told, if it is still this
        replica's.

        Raises:
            StateFailed, TooLarge: it is not kept.
        """
        cut = await self._store.begin_attempt(*key)
        if cut is None:
            return
        log = EventLog()
        with suppress(ValueError):  # what is behind a gap is not told
            _extend(log, cut)
        items = done_items(log)
        body = {**orjson.loads(cut.body), **status.members()}
        last = interrupted_events({**body, "output": items}, log.num_events, _dialect_of(cut))
        record = StoredResponse(
            key.id,
            orjson.dumps(body),
            cut.input,
            to_items(items),
            cut.previous_id,
            events=log.dump(last),
        )
        await self._store.finish_response(key.tenant, record)


def _said(packs: Iterable[EventPack]) -> list[GenerationOutput]:
    said: Iterable[bytes | None] = (pack.outputs for pack in packs)
    return list(chain.from_iterable(unpack_outputs(data) for data in said if data is not None))


def _ahead(cut: CutResponse, log: EventLog) -> Sequence[GenerationOutput]:
    """Returns what is kept of what the model has said behind the last event."""
    return _said(pack for pack in cut.packs if pack.first == log.num_events)


def _extend(log: EventLog, cut: CutResponse) -> None:
    for pack in cut.packs:
        log.extend(pack)


def _dialect_of(cut: CutResponse) -> Dialect:
    """Returns the dialect of a request, of which perhaps nothing else can be read."""
    try:
        return _DIALECTS[read_job(cut.job).dialect]
    except (ValueError, KeyError):
        return OPENAI
