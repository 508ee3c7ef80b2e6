"""Resumes responses that another process left unfinished, using leases."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Final

import orjson

from fastovms.api import offload
from fastovms.api.admin import WorkItem
from fastovms.api.answer import Envelope
from fastovms.api.client_request import ClientRequest
from fastovms.api.context import ApiContext
from fastovms.api.dialect import DIALECTS, OPENAI, Dialect
from fastovms.api.prompt import Prompt
from fastovms.api.served import ServedModel
from fastovms.errors import (
    BackendError,
    FastovmsError,
    Overloaded,
    RequestError,
    StateFailed,
    TooLarge,
)
from fastovms.http.messages import Caller
from fastovms.params import GenerationOutput
from fastovms.parts.responses.background import (
    LOOK_AGAIN,
    BackgroundRun,
    BackgroundRuns,
    ResponsesState,
)
from fastovms.parts.responses.events import EventLog, unpack_outputs
from fastovms.parts.responses.history import History, item_cost, reload_history
from fastovms.parts.responses.kept_request import ANY_FILES, model_key, prompt_resumption, read_job
from fastovms.parts.responses.output import ResponseStatus, failed, interrupted_events
from fastovms.parts.responses.prepare import names_of, prepare_response, ranked
from fastovms.parts.responses.request import read_fields
from fastovms.parts.responses.run import ResponsePlan, answering
from fastovms.parts.responses.stored import done_items, to_items
from fastovms.state.operations import Operations
from fastovms.state.state_store import StateStore
from fastovms.state.store import (
    EventPack,
    InterruptedResponse,
    OwnedResponse,
    ResponseKey,
    Resumption,
    StoredResponse,
)

logger = logging.getLogger(__name__)


_DIALECTS: Final = {dialect.name: dialect for dialect in DIALECTS}

_EARLIER: Final = 1
"""The priority bonus of a resumed request over equal requests, because it arrived before them."""

_RESTORED_AT_ONCE: Final = 64
"""The number of outputs that are restored before other tasks run."""


class NotResumable(FastovmsError):
    """Raised if no replica can resume the response; the message is the reason."""


class RunRestorer:
    """Recreates the runs of interrupted responses on this server."""

    def __init__(self, context: ApiContext, store: StateStore) -> None:
        self._context = context
        self._store = store

    def models(self) -> list[str]:
        """Returns the identities of the models whose responses this server can resume, whether the
        models are loaded or not."""
        known = self._context.models.named
        identified = [model_key(one.fingerprint, one.name) for one in known if one.is_identified]
        return [*identified, *(model_key(ANY_FILES, one.name) for one in known)]

    @asynccontextmanager
    async def held(self, key: str) -> AsyncIterator[ServedModel]:
        """Holds a model in memory while the context is open, after loading it if needed. Raises
        NotResumable if the model is no longer served; BackendError if it cannot be loaded now. For
        `key` see `model_key`."""
        name = key.partition(" ")[2]
        models = self._context.models
        known = models.get(name)
        if known is None:
            raise NotResumable(f"the model {name} is no longer served since the response was begun")
        release = None if models.holder is None else await models.holder.acquire(known.resident)
        try:
            known = known.refreshed()
            model = known.served
            keys = [model_key(files, name) for files in (known.fingerprint, ANY_FILES)]
            if not isinstance(model, ServedModel) or key not in keys:
                raise NotResumable(f"the model {name} has changed since the response was begun")
            yield model
        finally:
            if release is not None:
                release()

    async def restored(
        self, key: ResponseKey, cut: InterruptedResponse, model: ServedModel
    ) -> BackgroundRun:
        """Recreates the run of an interrupted response. Raises NotResumable if no replica can
        resume it; RequestError if the model, or this server, no longer accepts the request."""
        try:
            job = await offload.run(partial(read_job, cut.job), item_cost(len(cut.job)))
            outputs = _model_outputs(cut.packs)
            log = EventLog()
            _extend(log, cut)
        except ValueError as error:
            raise NotResumable(f"the response cannot be resumed: {error}") from error
        context = self._context
        dialect = _DIALECTS[job.dialect]
        fields = read_fields(job.body, dialect, keeps=True)
        budget = context.find_budget(key.tenant)
        caller = Caller(tenant=key.tenant, priority=job.priority, budget=budget)
        priority = ranked(caller, fields).priority
        rank = (job.body.priority or 0) if priority is None else priority
        client = job.client or key.tenant
        preparation = ClientRequest(
            id=context.new_id(),
            body=job.body,
            size=len(cut.job),
            model=model,
            dialect=dialect,
            config=context.config,
            names=names_of(job.body),
            caller=replace(caller, priority=rank - _EARLIER),
            client=client,
        )
        if job.prompt_token_ids:  # the stored prompt contains the earlier items
            history = History((), (), len(cut.job))
            prompt = Prompt(job.prompt_token_ids, job.prompt_text)
        else:
            history = await reload_history(
                fields, model.info, cut.input, job.items, key.tenant, self._store
            )
            prompt = None
        prepared = await prepare_response(preparation, fields, history, prompt)
        plan = ResponsePlan(
            body=job.body,
            fields=fields,
            history=history,
            envelope=Envelope(
                key.id, job.created, model.info.name, context.system_fingerprint, dialect
            ),
            caller=caller,
            client=client,
            id_key=job.id_key,
        )
        resumption: Resumption | None
        if prompt is None:
            write = partial(prompt_resumption, plan, prepared)
            resumption = await offload.run(write, item_cost(history.size))
            await self._store.run(Operations.set_resumption, *key, resumption)
        else:
            resumption = Resumption(model_key(model.info.fingerprint, model.info.name), cut.job)
        answer = answering(context, plan, prepared, {})
        background = BackgroundRun(
            plan,
            answer._replace(resumption=resumption),
            cut.input,
            self._store,
            log,
            _model_outputs(pack for pack in cut.packs if pack.first == log.num_events),
        )
        for start in range(0, len(outputs), _RESTORED_AT_ONCE):
            background.restore(outputs[start : start + _RESTORED_AT_ONCE])
            await asyncio.sleep(0)  # let other tasks run first
        return background

    async def end(self, key: ResponseKey, status: ResponseStatus) -> None:
        """Stores a response as failed or cancelled, with its events so far, if this replica still
        owns it. Raises StateFailed or TooLarge if it cannot be stored."""
        cut = await self._store.run(Operations.begin_attempt, *key)
        if cut is None:
            return
        log = EventLog()
        with suppress(ValueError):  # events after a gap are dropped
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
        await self._store.run(Operations.finish_response, key.tenant, record)


def _model_outputs(packs: Iterable[EventPack]) -> list[GenerationOutput]:
    packed: Iterable[bytes | None] = (pack.outputs for pack in packs)
    return list(chain.from_iterable(unpack_outputs(data) for data in packed if data is not None))


def _extend(log: EventLog, cut: InterruptedResponse) -> None:
    for pack in cut.packs:
        log.extend(pack)


def _dialect_of(cut: InterruptedResponse) -> Dialect:
    """Returns the dialect of an interrupted request, even if the rest of the request is
    unreadable."""
    try:
        return _DIALECTS[read_job(cut.job).dialect]
    except (ValueError, KeyError):
        return OPENAI


MAX_ATTEMPTS: Final = 3
"""The maximum number of attempts to resume a response without new output, since the response may be
what crashes the process."""

_RETRY: Final = 1.0
"""Seconds until a response is queued again if its model's queue was full."""

_CANCELLED: Final = "cancelled"
"""The name of the queue of responses to cancel; a model's identity never equals it."""

_by_attempts = attrgetter("num_attempts")


class Resumer:
    """Resumes responses that this replica owns but does not run.

    Each model has a queue of responses, which are resumed one at a time: the next one starts once
    the previous one has stored new output. If the process crashes before that, only the started
    response loses an attempt, because it may have caused the crash. Responses with failed attempts
    move to the end of the queue.

    Responses to cancel have a separate queue, which needs no model. `tenants` returns the tenants
    whose responses are resumed; None = all. Responses of other tenants, for example of a removed
    key, are kept until they are cancelled.
    """

    def __init__(
        self,
        store: StateStore,
        runs: BackgroundRuns,
        restorer: RunRestorer,
        tenants: Callable[[], Collection[str]] | None = None,
    ) -> None:
        self._store = store
        self._runs = runs
        self._restorer = restorer
        self._tenants = tenants
        self._lines: dict[str, dict[ResponseKey, None]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def room(self) -> int:
        """The number of further responses that this replica can take over."""
        return max(0, self._runs.room - sum(map(len, self._lines.values())))

    def tenants(self) -> Collection[str] | None:
        """Returns the tenants whose responses are resumed; None = all."""
        return None if self._tenants is None else self._tenants()

    def models(self) -> list[str]:
        """Returns the identities of the models whose responses this replica can resume."""
        return self._restorer.models()

    def add(self, responses: Iterable[OwnedResponse]) -> None:
        """Queues responses for resumption, except those already queued."""
        for response in sorted(responses, key=_by_attempts):
            key, model = response.key, response.model
            if response.cancel_requested:
                for name in self._lines.keys() - {_CANCELLED}:
                    self._lines[name].pop(key, None)
                model = _CANCELLED
            elif any(key in line for line in self._lines.values()):
                # Already queued, perhaps under the previous name of its model.
                continue
            self._lines.setdefault(model, {})[key] = None
            if model not in self._tasks:
                self._tasks[model] = asyncio.ensure_future(self._run(model))

    async def close(self) -> None:
        """Stops resuming responses."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self, model: str) -> None:
        """Resumes the responses of one queue."""
        line = self._lines[model]
        try:
            while line:
                key = next(iter(line))
                try:
                    await self._resume(key, model)
                except BackendError as error:
                    logger.warning(
                        "%d interrupted responses cannot be resumed now: %s", len(line), error
                    )
                    return
                except TooLarge as error:
                    logger.warning("response %s cannot be resumed now: %s", key.id, error)
                except Exception:
                    logger.exception("response %s cannot be resumed", key.id)
                line.pop(key, None)
        finally:
            del self._lines[model], self._tasks[model]

    async def _resume(self, key: ResponseKey, model: str) -> None:
        """Resumes a response, and returns once that has succeeded or failed permanently. Raises
        BackendError if the model cannot resume any response now; TooLarge if the failed response
        cannot be stored."""
        if model == _CANCELLED:
            await self._restorer.end(key, ResponseStatus("cancelled"))
            return
        tenants = self.tenants()
        if not model or (tenants is not None and key.tenant not in tenants):
            await self._store.run(Operations.give_up, [key])
            return
        try:
            async with self._restorer.held(model) as served:
                await self._try(key, served)
        except (NotResumable, RequestError) as error:
            logger.error("response %s cannot be resumed and is marked failed: %s", key.id, error)
            await self._restorer.end(key, failed(str(error)))

    async def _try(self, key: ResponseKey, model: ServedModel) -> None:
        """Records an attempt and starts it. Also raises as `RunRestorer.restored` does."""
        cut = await self._store.run(Operations.begin_attempt, *key)
        if cut is None:
            await self._store.run(Operations.give_up, [key])
            return
        if cut.num_attempts > MAX_ATTEMPTS:
            raise NotResumable(
                f"the server has resumed the response {MAX_ATTEMPTS} times without success"
            )
        run = await self._restorer.restored(key, cut, model)
        await self._start(run)
        logger.info("response %s is resumed after event %d", key.id, run.log.num_events)
        if cut.cancel_requested:
            run.cancel()
        await run.advanced()

    async def _start(self, run: BackgroundRun) -> None:
        """Starts a run as soon as its model's queue has room."""
        while True:
            try:
                self._runs.go_on(run)
                return
            except Overloaded:
                await asyncio.sleep(_RETRY)


_INTERVAL: Final = 1.0
"""Seconds between two renewals of leases. Leases last several seconds, so that a few renewals may
fail."""

_ALONE_INTERVAL: Final = 30.0
"""Seconds between searches for interrupted responses if no other replica uses the store."""

_MOST_LISTED: Final = 10_000
"""The maximum number of responses that are listed for operators."""

_LEASE_PATIENCE: Final = 600.0
"""Seconds within which a replica must take over a response before it counts as interrupted: all
replicas that can resume it may be busy or still starting."""


async def cancel_anywhere(state: ResponsesState, tenant: str, id: str) -> None:
    """Cancels a response on whichever replica runs it, and returns when it has stopped. It is then
    stored as cancelled or with its result, or no replica resumes it. Raises as
    `BackgroundRuns.kept` does."""
    with state.store.watch_response(tenant, id) as watch:
        while True:
            run = state.runs.find(tenant, id)
            if run is not None:
                await state.runs.cancel(run)
                return
            if not state.may_run_elsewhere or not await state.store.request_cancel(tenant, id):
                return
            await watch.changed(LOOK_AGAIN)


async def response_work(state: ResponsesState) -> list[WorkItem]:
    """Returns the background responses of all tenants, on any replica."""

    def work(key: ResponseKey, model: str, status: str, created_at: int | None) -> WorkItem:
        cancel = partial(cancel_anywhere, state, *key)
        return WorkItem("response", key.id, key.tenant, status, model, created_at, cancel)

    here = {run.key: run for run in state.runs.all()}
    found = [work(run.key, *run.summary()) for run in here.values()]
    for key, model, has_owner in await state.store.run(Operations.list_running, _MOST_LISTED):
        if key not in here:
            found.append(work(key, model, "in_progress" if has_owner else "held", None))
    return found


class LeaseKeeper:
    """Renews the leases of this replica every second if replicas share the store. Otherwise
    searches periodically for interrupted responses or, without a resumer, marks them as failed once
    at the start.

    Args:
        resumer: resumes interrupted responses of all replicas; None = this replica resumes none.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        store: StateStore,
        runs: BackgroundRuns,
        resumer: Resumer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._runs = runs
        self._resumer = resumer
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._renewed_at: float | None = None
        self._steady_since = 0.0

    def start(self) -> None:
        """Starts to renew leases, or to search for interrupted responses."""
        lease = self._store.lease
        if lease is not None:
            self._task = asyncio.ensure_future(self._run(lease))
        elif self._resumer is not None:
            self._task = asyncio.ensure_future(self._resume_periodically(self._resumer))
        else:
            self._task = asyncio.ensure_future(self._fail_interrupted())

    async def close(self) -> None:
        """Stops, and releases the leases of this replica, so that other replicas need not wait for
        them to expire."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait((self._task,))
        if self._resumer is not None:
            await self._resumer.close()
        if self._store.lease is None:
            return
        try:
            owned = await self._store.run(Operations.renew_leases)
            await self._store.run(Operations.give_up, [response.key for response in owned])
        except StateFailed as error:
            logger.warning(
                "cannot release running responses at shutdown; other servers resume them after "
                "their leases expire: %s",
                error,
            )

    async def renew(self, lease: float) -> None:
        """Renews the leases once, and handles the changes that the store reports. Does not raise: a
        failed renewal is retried."""
        expected = self._runs.leased()
        try:
            owned = {
                response.key: response
                for response in await self._store.run(Operations.renew_leases)
            }
            for run in expected:
                if run.key not in owned:
                    run.lose()
            orphans = []
            for key, response in owned.items():
                run_of_key = self._runs.find(*key)
                if run_of_key is None:
                    orphans.append(response)
                elif response.cancel_requested:
                    run_of_key.cancel()
            await self._resume_or_release(orphans)
            steady_for = self._seconds_available(lease)
            if steady_for >= lease:
                if self._resumer is not None:
                    await self._take_over(self._resumer)
                is_long = steady_for >= lease + _LEASE_PATIENCE
                await self._store.run(
                    Operations.interrupt_expired, _LEASE_PATIENCE if is_long else math.inf
                )
        except StateFailed:
            self._renewed_at = None

    async def _take_over(self, resumer: Resumer) -> None:
        """Takes over interrupted responses of other replicas, as many as may run here."""
        if room := resumer.room:
            models, tenants = resumer.models(), resumer.tenants()
            resumer.add(await self._store.run(Operations.take_over, models, room, tenants))

    async def _resume_or_release(self, orphans: Sequence[OwnedResponse]) -> None:
        if self._resumer is not None:
            self._resumer.add(orphans)
        elif orphans:
            await self._store.run(Operations.give_up, [response.key for response in orphans])

    async def _resume_periodically(self, resumer: Resumer) -> None:
        """Periodically resumes responses that are stored as running but do not run: after a start,
        and when a full disk has become writable again. Also cancels those whose clients asked for
        it."""
        with self._store.watch_cancels() as watch:
            while True:
                try:
                    owned = await self._store.run(Operations.renew_leases)
                    resumer.add(one for one in owned if self._runs.find(*one.key) is None)
                except StateFailed as error:
                    logger.debug("cannot look for interrupted responses, will retry: %s", error)
                await watch.changed(_ALONE_INTERVAL)

    async def _fail_interrupted(self) -> None:
        """Marks responses that were interrupted before the start as failed."""
        try:
            await self._store.run(Operations.interrupt_expired, 0.0)
        except StateFailed as error:
            logger.warning(
                "cannot mark interrupted responses as failed; they still count as running: %s",
                error,
            )

    async def _run(self, lease: float) -> None:
        with self._store.watch_cancels() as watch:
            while True:
                await self.renew(lease)
                await watch.changed(_INTERVAL)

    def _seconds_available(self, lease: float) -> float:
        """Records a renewal, and returns the seconds for which the store has been available. A
        lease that expired during an outage does not prove that its replica has ended."""
        now = self._clock()
        if self._renewed_at is None or now - self._renewed_at > lease / 2:
            self._steady_since = now
        self._renewed_at = now
        return now - self._steady_since
