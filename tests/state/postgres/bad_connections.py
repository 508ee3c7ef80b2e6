"""Runs replicas that share a state in PostgreSQL over failing connections, and checks invariants.

The database server, `LeaseKeeper`, `EventWriter`, `StateStore` and `fastovms.parts.postgres` are
the real ones. Each replica connects through a `FaultProxy` and has clocks that drift. Random
choices are seeded, but time is real: a failing seed may pass when it is run again.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, cast

import psycopg
from psycopg.conninfo import conninfo_to_dict

from fastovms.errors import StateFailed
from fastovms.parts.postgres import database
from fastovms.parts.postgres.database import DatabaseLink, PostgresDatabase
from fastovms.parts.postgres.schema import TimeLimits
from fastovms.parts.postgres.server_address import ServerAddress
from fastovms.parts.postgres.shared_state import NotificationListener
from fastovms.parts.responses import events, resumption
from fastovms.parts.responses.events import EventLog, EventWriter
from fastovms.parts.responses.resumption import LeaseKeeper
from fastovms.state.database import StateBounds
from fastovms.state.operations import Operations
from fastovms.state.running_responses import Replica
from fastovms.state.state_store import StateStore
from fastovms.state.store import (
    EventPack,
    OwnedResponse,
    ResponseKey,
    ResponseProgress,
    Resumption,
    StoredItem,
    StoredResponse,
)
from tests.state.postgres.fault_proxy import FaultProxy

_LEASE: Final = 1.5

_LOSSES: Final = ("kill", "refuse", "hang", "slow", "slow")
"""The faults of a whole replica: it is killed, or has an outage of its `FaultProxy`."""

_SECONDS: Final = 7.0
"""The seconds during which faults are injected, at least."""

LEAST_ACKNOWLEDGED: Final = 50
"""The number of acknowledged operations before which the faults do not end."""

_LONGEST: Final = 60.0
"""The seconds after which the faults end in any case."""

_PATIENCE: Final = 60.0
"""The seconds after the last fault within which all responses must end."""

_LIMITS: Final = TimeLimits(statement=1.2, answer=1.6, idle=2.4)

_BOUNDS: Final = StateBounds(1e9, 10**9, 10**12)

_TENANT: Final = "t"

_MODEL: Final = "model"

_AUDIT: Final = """
CREATE TABLE breaches (what text NOT NULL);
CREATE FUNCTION audit_events() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE own text := current_setting('application_name');
DECLARE other text := (SELECT owner FROM runs WHERE object = NEW.object);
BEGIN
    IF own IS DISTINCT FROM other THEN
        INSERT INTO breaches VALUES (format('%s adds events to a response of %s', own, other));
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER audit_events AFTER INSERT ON event_packs
    FOR EACH ROW EXECUTE FUNCTION audit_events();
CREATE FUNCTION audit_runs() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE own text := current_setting('application_name');
DECLARE seconds float := OLD.lease_until - unix_time();
BEGIN
    IF OLD.owner <> own AND (seconds > 0 OR TG_OP = 'UPDATE' AND NEW.owner = OLD.owner) THEN
        INSERT INTO breaches VALUES (format(
            '%s does an %s of a response of %s, whose lease has %s s left',
            own, TG_OP, OLD.owner, seconds));
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER audit_runs AFTER UPDATE OR DELETE ON runs
    FOR EACH ROW EXECUTE FUNCTION audit_runs();
"""
"""Triggers that record each change that a replica makes to a response whose lease another replica
holds."""


@dataclass
class Report:
    """The result of a seed.

    Attributes:
        failures: kinds and texts of the broken invariants.
        counts: the numbers of faults and of other events, by name.
    """

    seed: int
    failures: list[tuple[str, str]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


class _Told:
    """The data that the store has acknowledged or returned to readers."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self.responses: list[str] = []
        self.finished: set[str] = set()
        self.items: list[str] = []
        self.events: dict[tuple[str, int], bytes] = {}

    def note_events(self, id: str, packs: Sequence[EventPack]) -> int:
        """Records events of a response, which must not change afterwards. Returns the number of
        events up to the last of these."""
        log = EventLog(packs[0].first if packs else 0)
        try:
            for pack in packs:
                log.extend(pack)
        except ValueError as error:
            self.fail("gap", f"{id}: {error}")
        number = packs[0].first if packs else 0
        while number < log.num_events:
            for frame in log.read(number):
                known = self.events.setdefault((id, number), frame)
                if known != frame:
                    self.fail("changed", f"event {number} of {id} was {known!r}, is {frame!r}")
                number += 1
        return number

    def fail(self, kind: str, text: str) -> None:
        self._report.failures.append((kind, text))

    def count(self, what: str) -> None:
        self._report.counts[what] += 1


class _Store(StateStore):
    """Records the events that it acknowledges."""

    told: _Told

    async def run(self, operation: Callable[..., Any], *args: Any, **fields: Any) -> Any:
        try:
            result = await super().run(operation, *args, **fields)
        except StateFailed as error:
            self.told.count("unknown" if "unknown" in str(error) else "failed")
            raise
        self.told.count("acknowledged")
        if operation is Operations.add_events and result:
            _, id, pack = args
            self.told.note_events(id, [pack])
        return result


class _Run:
    """A response that runs on a replica; stores its events and its end as `BackgroundRun` does."""

    def __init__(self, replica: _Replica, key: ResponseKey, log: EventLog, most: int) -> None:
        self.key = key
        self._replica = replica
        self._log = log
        self._most = most
        self._writer = EventWriter(log, replica.store, key, keeps_outputs=False)
        self._lost = asyncio.Event()
        self.is_accepted = False

    def lose(self) -> None:
        self._replica.told.count("lost")
        self._lost.set()

    async def drive(self) -> None:
        replica, id = self._replica, self.key.id
        writing = asyncio.ensure_future(self._writer.run(self.lose))
        try:
            for number in range(self._log.num_events, self._most):
                self._writer.add([f"event: {id} {number} of {replica.id}\n\n".encode()])
                with suppress(TimeoutError):
                    async with asyncio.timeout(replica.chance.uniform(0.0, 0.3)):
                        await self._lost.wait()
                if self._lost.is_set():
                    return
        finally:
            writing.cancel()
            await asyncio.wait((writing,))
        events = self._log.dump(self._writer.take_unsent())
        record = StoredResponse(id, b"{}", output=[StoredItem(f"{id}-out", b"x")], events=events)
        while not self._lost.is_set():
            try:
                if await replica.store.run(
                    Operations.finish_response, _TENANT, record, conversation_id="c"
                ):
                    replica.told.finished.add(id)
                return
            except StateFailed:
                await asyncio.sleep(0.1)


class _Replica:
    """One server; stands for the `BackgroundRuns` and the `Resumer` of its `LeaseKeeper`."""

    def __init__(
        self,
        id: str,
        address: ServerAddress,
        proxy: FaultProxy,
        told: _Told,
        chance: random.Random,
        resumable: float,
    ) -> None:
        """
        Args:
            resumable: the share of responses that others resume when this replica is lost.
        """
        self.id = id
        self.proxy = proxy
        self._resumable = resumable
        self.told = told
        self.chance = chance
        rate, offset = chance.uniform(0.9, 1.1), chance.uniform(-1e4, 1e4)
        replica = Replica(id, _LEASE)
        link = DatabaseLink(address, lambda: rate * time.monotonic(), _LIMITS)
        databases = [
            PostgresDatabase(
                link,
                _BOUNDS,
                lambda: rate * time.time() + offset,
                replica=replica,
                only_reads=number % 2 == 1,
            )
            for number in range(3)
        ]
        self.store = _Store(
            *databases[::2],
            readers=databases[1::2],
            replica=replica,
            watchers=NotificationListener(address),
            timeout=5.0,
        )
        self.store.told = told
        self._runs: dict[ResponseKey, _Run] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        clock = lambda: rate * time.monotonic()  # noqa: E731
        self._keeper = LeaseKeeper(self.store, cast("Any", self), cast("Any", self), clock)
        self._keeper.start()
        self._clients = [
            self.spawn(work) for work in (self.start_responses(), self.talk(), self.follow())
        ]

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._end)
        return task

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.told.fail("error", f"{self.id}: {type(error).__name__}: {error}")

    def end_clients(self) -> None:
        for task in self._clients:
            task.cancel()

    async def kill(self) -> None:
        """Ends the replica without releasing its leases."""
        self.proxy.begin_outage("refuse")
        keeping = self._keeper._task
        assert keeping is not None
        for task in (keeping, *self._tasks):
            task.cancel()
        await self.store.close()
        await self.proxy.close()

    async def stop(self) -> None:
        await self._keeper.close()
        await self.store.close()
        await self.proxy.close()

    # Interface to `LeaseKeeper`

    room = 4

    def models(self) -> Sequence[str]:
        return [_MODEL]

    def tenants(self) -> None:
        return None

    def leased(self) -> list[_Run]:
        return [run for run in self._runs.values() if run.is_accepted]

    def find(self, tenant: str, id: str) -> _Run | None:
        return self._runs.get(ResponseKey(tenant, id))

    def add(self, responses: Iterable[OwnedResponse]) -> None:
        for response in responses:
            if response.key not in self._runs:
                self.spawn(self._resume(response))

    async def close(self) -> None:
        pass

    async def _resume(self, response: OwnedResponse) -> None:
        with suppress(StateFailed):
            if not response.model:
                await self.store.run(Operations.give_up, [response.key])
                return
            cut = await self.store.run(Operations.begin_attempt, *response.key)
            if cut is None or response.key in self._runs:
                return
            self.told.count("resumed")
            log = EventLog()
            for pack in cut.packs:
                log.extend(pack)
            run = self._runs[response.key] = _Run(self, response.key, log, int(cut.job))
            self.spawn(self._drive(run))

    async def _drive(self, run: _Run) -> None:
        run.is_accepted = True
        try:
            await run.drive()
        finally:
            del self._runs[run.key]

    # Clients

    async def start_responses(self) -> None:
        for number in range(10**6):
            await asyncio.sleep(self.chance.uniform(0.05, 0.4))
            id, most = f"{self.id}-{number}", self.chance.choice((3, 10, 20))
            is_resumable = self.chance.random() < self._resumable
            job = Resumption(_MODEL, b"%d" % most) if is_resumable else None
            running = StoredResponse(id, b"{}", progress=ResponseProgress.RUNNING, resumption=job)
            key = ResponseKey(_TENANT, id)
            run = self._runs[key] = _Run(self, key, EventLog(), most)
            with suppress(StateFailed):
                try:
                    await self.store.run(Operations.add_response, _TENANT, running)
                except BaseException:
                    del self._runs[key]
                    raise
                self.told.responses.append(id)
                self.spawn(self._drive(run))

    async def talk(self) -> None:
        for number in range(10**6):
            item = StoredItem(f"{self.id}-item-{number}", b"x")
            with suppress(StateFailed):
                await self.store.run(Operations.add_items, _TENANT, "c", [item])
                self.told.items.append(item.id)
            await asyncio.sleep(self.chance.uniform(0.0, 0.1))

    async def follow(self) -> None:
        """Reads events of random responses."""
        while True:
            await asyncio.sleep(self.chance.uniform(0.0, 0.1))
            if not self.told.responses:
                continue
            id = self.chance.choice(self.told.responses)
            with suppress(StateFailed):
                found = await self.store.run(Operations.find_events, _TENANT, id, 0)
                if found is None:
                    self.told.fail("forgotten", f"{id} is not there")
                    return
                if found.packs and found.packs[0].first:
                    self.told.fail("gap", f"{id} begins with event {found.packs[0].first}")
                self.told.note_events(id, found.packs)


class _World:
    """The replicas of a seed, and the faults that happen to them."""

    def __init__(self, seed: int, url: str, port: int) -> None:
        self._report = Report(seed)
        self._told = _Told(self._report)
        self._url = url
        self._port = port
        self._chance = random.Random(f"bad connections {seed}")
        self._replicas: list[_Replica] = []
        self._ending: list[asyncio.Task[None]] = []
        self._num_replicas = 0
        self._resumable = self._chance.choice((0.0, 0.6, 1.0))

    async def run(self) -> Report:
        address = ServerAddress(_parameters(self._url))
        direct = PostgresDatabase(DatabaseLink(address), _BOUNDS, time.time)
        try:
            direct.transact([lambda state: state.add_conversation(_TENANT, "c", b"{}", [])])
            with psycopg.connect(self._url, autocommit=True) as connection:
                connection.execute(_AUDIT)
            num_spared = self._chance.choice((0, 1, 1))
            for number in range(2 + num_spared):
                await self._add_replica(0.0 if number < num_spared else 0.01)
            await self._trouble(num_spared)
            await self._settle(direct)
            await asyncio.gather(*self._ending, *(replica.stop() for replica in self._replicas))
            self._check(direct)
            with psycopg.connect(self._url) as connection:
                for (text,) in connection.execute("SELECT what FROM breaches"):
                    self._told.fail("lease", text)
        finally:
            direct.close()
        return self._report

    async def _add_replica(self, rate: float) -> None:
        name = f"replica-{self._num_replicas}"
        self._num_replicas += 1
        proxy = FaultProxy(self._port, self._chance, _LIMITS.answer, rate)
        parameters = _parameters(self._url) | {
            "port": str(await proxy.start()),
            "application_name": name,
            "connect_timeout": "2",
        }
        replica = _Replica(
            name, ServerAddress(parameters), proxy, self._told, self._chance, self._resumable
        )
        proxy.is_active = True
        proxy.on_takeover = self._end_outages
        self._replicas.append(replica)

    def _end_outages(self) -> None:
        """Has replicas return at the moment when others take over their responses, at times."""
        if self._chance.random() < 0.7:
            for replica in self._replicas:
                replica.proxy.end_outage()

    async def _trouble(self, num_spared: int) -> None:
        """Injects faults for some seconds, longer on a machine that is busy.

        Args:
            num_spared: how many of the replicas stay connected, so that they take over what the
                others run.
        """
        chance, started, counts = self._chance, time.monotonic(), self._report.counts
        while (seconds := time.monotonic() - started) < _SECONDS or (
            counts["acknowledged"] < LEAST_ACKNOWLEDGED and seconds < _LONGEST
        ):
            await asyncio.sleep(chance.uniform(0.1, 0.8))
            kind, replica = chance.choice(_LOSSES), chance.choice(self._replicas[num_spared:])
            if replica.proxy.outage:
                continue
            self._told.count(kind)
            if kind == "kill":
                self._replicas.remove(replica)
                self._ending.append(asyncio.ensure_future(replica.kill()))
                await self._add_replica(0.01)
            else:
                replica.proxy.begin_outage(kind)
                outage = _LEASE * chance.uniform(0.6, 3.0)
                asyncio.get_running_loop().call_later(outage, replica.proxy.end_outage)
        for replica in self._replicas:
            replica.proxy.end_outage()
            replica.proxy.is_active = False
            self._report.counts += replica.proxy.num_faults
            replica.end_clients()

    async def _settle(self, direct: PostgresDatabase) -> None:
        """Waits until all responses have ended and all replicas can write."""
        ends_at = time.monotonic() + _PATIENCE
        while time.monotonic() < ends_at:
            [(running, error)] = await asyncio.to_thread(
                direct.transact, [lambda state: state.list_running(1000)]
            )
            for replica in self._replicas:
                try:
                    await replica.store.run(Operations.give_up, [])
                except StateFailed as failure:
                    error = failure
            if not running and error is None:
                break
            await asyncio.sleep(0.1)
        else:
            self._told.fail("hang", f"{running} run; {error}")

    def _check(self, direct: PostgresDatabase) -> None:
        """Checks the stored data at the end."""
        told = self._told

        def read(operation: Callable[..., Any], *args: Any) -> Any:
            [(result, error)] = direct.transact([lambda state: operation(state, *args)])
            if error is not None:
                told.fail("error", repr(error))
            return result

        found = read(Operations.conversation_context, _TENANT, "c", 10**9)
        ids = [item.id for item in found.items]
        twice = [id for id, count in Counter(ids).items() if count > 1]
        if twice:
            told.fail("twice", f"items {twice}")
        missing = set(told.items) - set(ids)
        if missing:
            told.fail("forgotten", f"items {missing}")
        for id in told.responses:
            response = read(Operations.find_response, _TENANT, id)
            if response is None:
                told.fail("forgotten", f"{id} is not there")
                continue
            packs = read(Operations.find_events, _TENANT, id, 0).packs
            stored = {number for key, number in told.events if key == id}
            num_events = told.note_events(id, packs)
            if stored and max(stored) >= num_events:
                told.fail("forgotten", f"{id} has {num_events} events, and had {max(stored) + 1}")
            has_ended = response.progress is ResponseProgress.FINISHED
            if id in told.finished and not has_ended:
                told.fail("forgotten", f"{id} was stored as finished, and is {response.progress}")
            if ids.count(f"{id}-out") != has_ended:
                told.fail("twice", f"{id} is {ids.count(f'{id}-out')} times in its conversation")
        for fault in direct.faults():
            told.fail("books", fault)


def _parameters(url: str) -> dict[str, str]:
    return {name: str(value) for name, value in conninfo_to_dict(url).items()}


async def run(seed: int, url: str, port: int) -> Report:
    """Runs a seed in an empty database of the server at a port of the loopback."""
    return await _World(seed, url, port).run()


HURRY: Final = (
    (resumption, "_INTERVAL", 0.2),
    (events, "_RETRY", 0.1),
    (database, "_MAX_DELAY", 0.5),
)
"""Modules and names of intervals, and their seconds in these tests."""
