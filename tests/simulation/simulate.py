"""Runs one world from its seed, and checks what must hold in it."""

from __future__ import annotations

import asyncio
import gc
import logging
import shutil
import ssl
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from fastovms.app.supply import ModelSupply
from fastovms.parts.batches.service import BatchService
from tests.simulation.batches import BatchClient, KeptBatch, look_at_batch
from tests.simulation.client import (
    Answer,
    BadAnswer,
    ClientConnection,
    FrameLimit,
    Gone,
    call,
    connect,
    get,
    read_answer,
    render,
)
from tests.simulation.dialogues import (
    Dialogue,
    Kept,
    KeptConversation,
    look_again,
    look_as_stranger,
    look_at_conversation,
    wait_for_resumption,
)
from tests.simulation.disk import DISK_FAULTS, Disk, use_disk
from tests.simulation.encoders import CheckedTurn
from tests.simulation.encoding import Encoding
from tests.simulation.expected import SentText, SentTexts, body_of, faults_of
from tests.simulation.loop import SimLoop
from tests.simulation.network import FAST
from tests.simulation.prompt_cache import STATE_DIR, damage_files
from tests.simulation.reloads import BROKEN, VARIANTS, Operator, Reload, weights_name
from tests.simulation.scenarios import make_scenario
from tests.simulation.server import LogWatch, Port, SimServer
from tests.simulation.sockets import SocketClient
from tests.simulation.speech import SPEECH
from tests.simulation.tls import TlsFlow, certificate_number, client_context
from tests.simulation.transcribing import faults_of_speech, render_speech
from tests.simulation.workload import (
    PROMPTS,
    WRONG_CLOCKS,
    Accident,
    Action,
    Scenario,
    headers_of,
)
from tests.simulation.world import World

_MOST_SECONDS: Final = 20_000.0
_MOST_TO_FIRST: Final = 60.0
_MOST_TO_RELOAD: Final = 60.0
_MOST_TO_CUT: Final = 0.5
_MOST_TO_CLOSE: Final = 60.0

_MOST_DRIPS: Final = 500
"""In about how many parts a request is sent at most."""

_ABANDONED: Final = ("executor", "load")
"""Threads that a server which ends does not wait for: a model may take minutes to load. The process
of a model of speech that has just been loaded ends with that of the server."""


@dataclass(frozen=True)
class Outcome:
    """What has come of a world.

    Attributes:
        failures: kinds and texts; none = all invariants hold.
        trace: the hash of all that has happened.
    """

    seed: int
    failures: tuple[tuple[str, str], ...]
    trace: str
    num_answers: int
    num_switches: int
    seconds: float
    lines: tuple[str, ...] = ()


class Simulation:
    """One world: a server, and clients that act on it."""

    def __init__(self, scenario: Scenario, *, record: bool = False) -> None:
        self._scenario = scenario
        self.world = World(scenario.seed, record=record)
        self._port = Port(self.world)
        self._port.on_status = self._check_key
        if scenario.settings.has_tls:
            versions = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_3)
            self._port.new_context = lambda: client_context(self.world.chance.choice(versions))
        self._answers: list[Answer] = []
        self._disk = Disk(self.world.chance)
        self._kept: list[Kept | KeptConversation | KeptBatch] = []
        self._servers: dict[int, SimServer] = {}
        self._num_servers = self._num_encoded = 0
        self._changing = asyncio.Lock()
        self._operator = Operator(
            *scenario.files_at_first, keeps=not scenario.settings.loads_on_demand
        )
        is_kept = bool(scenario.settings.prompt_cache or scenario.reloads)
        self._texts = SentTexts(repeats=is_kept or scenario.has_bad_disk)

    def run(self) -> Outcome:
        world = self.world
        watch = LogWatch()
        root = logging.getLogger()
        handlers, level = root.handlers[:], root.level
        root.handlers[:] = [watch]
        root.setLevel(logging.INFO)
        warnings.filterwarnings("ignore", "coroutine .* was never awaited")  # of killed processes
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        gc.disable()
        shutil.rmtree(STATE_DIR, ignore_errors=True)
        use_disk(self._disk)
        self._operator.write()
        try:
            world.run(self._main, _MOST_SECONDS)
            self._port.close()
            gc.collect()  # what a killed process leaves behind
        finally:
            sys.unraisablehook = hook
            use_disk(None)
            shutil.rmtree(STATE_DIR, ignore_errors=True)
            root.handlers[:] = handlers
            root.setLevel(level)
            gc.enable()
        return Outcome(
            world.seed,
            tuple((kind, text) for kind, text, _ in world.failures),
            world.trace.hexdigest(),
            len(self._answers),
            world.num_switches,
            world.now,
            tuple(world.lines or ()),
        )

    def _main(self) -> None:
        process = self.world.threads[0].process
        with asyncio.Runner(loop_factory=lambda: SimLoop(process)) as runner:
            runner.run(self._live())

    async def _live(self) -> None:
        world, scenario = self.world, self._scenario
        for slot in range(scenario.settings.num_replicas):
            self._start_server(slot)
        clients = [asyncio.create_task(self._act(action)) for action in scenario.actions]
        reloading = asyncio.create_task(self._reload_all())
        await self._finish([asyncio.create_task(self._meet(a)) for a in scenario.accidents])
        await self._finish([reloading])
        await self._finish(clients)
        async with asyncio.timeout(60):
            await until(lambda: all(server.is_ready for server in self._servers.values()))
        for kept in self._kept:
            if isinstance(kept, Kept) and scenario.has_bad_disk:
                await wait_for_resumption(world, self._port, kept)
        for kept in self._kept:
            for key in scenario.keys:
                if key != kept.action.key:
                    await look_as_stranger(world, self._port, key, kept.paths)
        for kept in self._kept:
            if isinstance(kept, KeptConversation):
                await look_at_conversation(world, self._port, FAST, kept)
            elif isinstance(kept, KeptBatch):
                await look_at_batch(world, self._port, kept)
            else:
                await look_again(world, self._port, kept)
        if scenario.ends_by == "idle":
            # What a bad disk has cut off is resumed within half a minute.
            await asyncio.sleep(45 if scenario.has_bad_disk else 30)
            for server in self._servers.values():
                await self._check_idle(server)
        for server in self._servers.values():
            await self._stop_server(server)

    def _start_server(self, slot: int) -> None:
        name = f"server {self._num_servers}"
        self._num_servers += 1
        settings = self._scenario.settings
        drift = self.world.chance.choice(settings.drifts)
        server = SimServer(
            self.world, self._port, self._disk, settings, self._operator, name, drift=drift
        )
        self._servers[slot] = server

    async def _stop_server(self, server: SimServer) -> None:
        await until(lambda: bool(server.handlers))
        server.terminate()
        async with asyncio.timeout(300):
            await until(lambda: server.main.has_ended)
        await asyncio.sleep(1)  # a thread has said that it ends, and ends soon
        self._check_end(server)

    async def _meet(self, accident: Accident) -> None:
        """Has the server meet with an accident, and starts it again."""
        await asyncio.sleep(accident.at)
        if accident.kind in DISK_FAULTS:
            # A server that starts on a bad disk does not find stored data until the disk is usable.
            async with self._changing:
                await until(lambda: all(server.is_ready for server in self._servers.values()))
                self.world.note("accident", accident)
                self._disk.fault = accident.kind
            await asyncio.sleep(accident.pause)
            self._disk.fault = ""
            return
        if accident.kind == "descriptors" or accident.kind in WRONG_CLOCKS:
            async with self._changing:
                await until(lambda: all(server.is_ready for server in self._servers.values()))
                self.world.note("accident", accident)
                self._set_shortage(accident.kind)
                await asyncio.sleep(accident.pause)
                self._set_shortage("")
            return
        if accident.kind == "rot":
            self.world.note("accident", accident)
            damage_files(self.world.chance)
            return
        async with self._changing:
            self.world.note("accident", accident)
            server = self._servers[accident.slot]
            if accident.kind == "cut":
                server.is_cut = True
                await asyncio.sleep(accident.pause)
                server.is_cut = False
                return
            if accident.kind in ("kill", "power"):
                server.kill(loses_power=accident.kind == "power")
            elif accident.kind == "stop":
                await self._stop_server(server)
            else:
                await self._break_model(server, accident.kind)
            await asyncio.sleep(accident.pause)
            await until(lambda: not self._disk.fault)
            self._start_server(accident.slot)

    def _set_shortage(self, kind: str) -> None:
        for server in self._servers.values():
            server.is_short = kind == "descriptors"
            server.process.clock_error = WRONG_CLOCKS.get(kind, 0.0)

    async def _break_model(self, server: SimServer, fault: str) -> None:
        """Has the model of a server fail. The server must notice it at the next step, and end."""
        await until(lambda: bool(server.backends) and server.backends[-1]._warm.is_set())
        path, body = "/v1/completions", {"model": "sim", "prompt": "a", "max_tokens": 1}
        if fault.startswith("encoder "):
            server.encoder_fault = fault.removeprefix("encoder ")
            path, body = "/v1/score", {"text_1": "a", "text_2": "a"}
            body["model"] = server.settings.encoders[0]
        else:
            server.fault = fault
        for _ in range(100):
            if server.main.has_ended:
                break
            connection = connect(self.world, self._port, FAST)
            headers = headers_of(next(iter(self._operator.keys), ""))
            connection.send(render("POST", path, body, headers))
            await asyncio.sleep(1)
            connection.close()
            failed = [] if server.main.has_ended else [b for b in server.backends if b.failure]
            if any(backend._requests._requests for backend in failed):
                self.world.fail("kept", "an engine that has failed still has requests")
            encoders = [] if server.main.has_ended else server.encoders
            if any(one.backend.failure and one.backend._jobs for one in encoders):
                self.world.fail("kept", "an encoder that has failed still has requests")
        if not (server.outcome or "").startswith("EngineFailed"):
            self.world.fail("end", f"a model has failed by {fault}: {server.outcome!r}")
        server.kill()

    async def _reload_all(self) -> None:
        start = self.world.now
        for reload in self._scenario.reloads:
            await asyncio.sleep(max(0.0, start + reload.at - self.world.now))
            async with self._changing:
                await self._reload(reload)
        if set(self._scenario.keys) - set(self._operator.keys):  # for those who still wait for them
            await asyncio.sleep(2)
            async with self._changing:
                await self._reload(Reload(0, 0.0, self._scenario.keys))
        models = self._operator.models
        if self._scenario.has_losses and BROKEN in dict(models).values():  # to resume responses
            await asyncio.sleep(2)
            mended = tuple((n, VARIANTS[0] if v == BROKEN else v) for n, v in models)
            async with self._changing:
                await self._reload(Reload(0, 0.0, models=mended))

    async def _reload(self, reload: Reload) -> None:
        """Changes the operator's files, and checks that the servers go by them."""
        world, operator = self.world, self._operator
        servers = list(self._servers.values())
        await until(lambda: all(server.handlers for server in servers))
        world.note("reload", reload)
        states = operator.states_after(reload)
        operator.timeline.begin(world.now, states)
        operator.change(reload)
        numbers = [server.num_reloads for server in servers]
        if reload.by == "request":
            answer = await call(world, self._port, FAST, "POST", "/v1/config/reload", {})
            if answer.status not in ((412,) if reload.is_bad else (200, 201, 412)):
                world.fail("reload", f"{reload}: status {answer.status} {answer.body!r}")
        elif reload.by == "signal":
            for server in servers:
                server.reload()
            await until(
                lambda: all(s.num_reloads > n for s, n in zip(servers, numbers, strict=True))
            )
        if reload.models:
            try:
                async with asyncio.timeout(_MOST_TO_RELOAD):
                    await until(lambda: all(map(self._goes_by_list, servers)))
            except TimeoutError:
                world.fail("reload", f"{reload} has no effect")
        operator.timeline.end(world.now, states)
        operator.mend(reload)
        if not self._scenario.has_losses:
            await self._probe(reload, states)

    async def _probe(self, reload: Reload, states: dict[str, str]) -> None:
        """Checks which keys count, and which models are listed."""
        keys = self._scenario.keys
        for key in (*keys, "", "another") if keys else ("",):
            answer = await get(self.world, self._port, FAST, "/v1/models", headers_of(key))
            status = 401 if keys and states.get(key) != "there" else 200
            if answer.status == 503 and b"is loading" in answer.body:
                return  # the server has not started yet
            if answer.status != status:
                self.world.fail("key", f"after {reload}, {key!r} has status {answer.status}")
            if status == 200 and self._scenario.settings.num_models > 1:
                names = sorted(model["id"] for model in answer.json["data"])
                if names != sorted(name for name, _ in self._operator.models):
                    self.world.fail("model", f"after {reload}, there are {names}")

    def _goes_by_list(self, server: SimServer) -> bool:
        """Returns whether a server knows the models of the list, and has loaded what it will."""
        supply = server.supply
        if server.main.has_ended or supply is None or supply._pool is None:
            return server.main.has_ended
        given, configs = dict(self._operator.models), supply._pool.configs
        # One that cannot be loaded may be served as it was.
        is_applied = configs.keys() == given.keys() and all(
            given[name] in (configs[name].path.name, BROKEN) for name in given
        )
        return is_applied and all(load.done() for load in supply._loads)

    async def _finish(self, clients: Iterable[asyncio.Task[None]]) -> None:
        for client in clients:
            try:
                await client
            except Exception as error:
                self.world.fail("client", f"{type(error).__name__}: {error}", error)

    # Clients

    async def _act(self, action: Action) -> None:
        world = self.world
        await asyncio.sleep(0.2 + action.at)
        if action.api in ("responses", "socket", "batch"):
            try:
                await self._client(action).run()
            except BadAnswer as error:
                world.fail("answer", f"{action}: {error}")
            return
        if action.api == "knock":
            await self._knock(action)
            return
        connection = connect(world, self._port, action.line, action.sip)
        request = _request(action)
        own = self._texts.add_prompt(action) if action.api in PROMPTS else None
        try:
            if action.pipelines:
                await self._send(action, connection, request * (1 + action.repeats))
            for _ in range(1 + action.repeats):
                if not action.pipelines:
                    connection.begin_request()
                    await self._send(action, connection, request)
                if not await self._ask(action, connection, own):
                    break
                own = None
        except FrameLimit:
            pass
        finally:
            if action.leaves == "reset":
                connection.reset()
            else:
                connection.close()
            self._check_certificate(action, connection)

    def _client(self, action: Action) -> Dialogue | SocketClient | BatchClient:
        scenario, settings = self._scenario, self._scenario.settings
        given = (self.world, self._port, action, settings, self._kept, self._texts)
        if action.api == "responses":
            return Dialogue(*given, is_strict=not scenario.has_bad_disk)
        if action.api == "batch":
            return BatchClient(*given, may_fail=any(a.kind == "nan" for a in scenario.accidents))
        return SocketClient(
            *given,
            may_lose=action.loses or self._may_lose(action),
            may_refuse=settings.engine.max_num_queued_requests < 100,
            is_removed=lambda: self._is_removed(action.key),
        )

    async def _knock(self, action: Action) -> None:
        """Connects, and speaks no TLS."""
        link = self._port.connect(action.line)
        if action.prompt:
            assert isinstance(link.up, TlsFlow)
            link.up.send_raw(action.prompt.encode("latin-1"))
        await asyncio.sleep(action.after_seconds)
        if action.leaves == "reset":
            link.client_resets()
        elif action.leaves == "close":
            link.up.end()
        try:
            async with asyncio.timeout(_MOST_TO_CLOSE):
                await until(lambda: link.is_reset or link.is_client_reset or link.down.is_ended)
        except TimeoutError:
            self.world.fail("hang", f"{action}: the connection stays open")
        link.client_resets()

    def _check_certificate(self, action: Action, connection: ClientConnection) -> None:
        tls = connection.tls
        if tls is not None and tls.certificate is not None:
            number = certificate_number(tls.certificate)
            states = self._operator.timeline.between("certificate", tls.begun_at, tls.done_at)
            if number not in states:
                self.world.fail("certificate", f"{action}: {number}, and not of {set(states)}")

    async def _send(self, action: Action, connection: ClientConnection, data: bytes) -> None:
        if action.drip is None:
            connection.send(data)
            return
        size, seconds = action.drip
        size = max(size, len(data) // _MOST_DRIPS)
        for start in range(0, len(data), size):
            connection.send(data[start : start + size])
            await asyncio.sleep(seconds)

    async def _ask(
        self, action: Action, connection: ClientConnection, own: SentText | None
    ) -> bool:
        """Asks once. Returns whether the connection can be used again.

        Args:
            own: the text that was sent for the first time.
        """
        world = self.world
        answer = Answer(asked_at=world.now)
        self._answers.append(answer)
        reading = read_answer(world, connection, answer, action.after_frames or None)
        try:
            if action.leaves and not action.after_frames:
                try:
                    async with asyncio.timeout(action.after_seconds):
                        await reading
                except TimeoutError:
                    if action.leaves == "half-close":
                        connection.half_close()
                        await connection.rest()
                    return False
            else:
                await reading
        except Gone as gone:
            answer.gone = str(gone)
            may_be_cut = "away" in self._states(action.key, connection.sent_at)
            if not (may_be_cut or self._may_lose(action)):
                world.fail("lost", f"{action}: the connection ends: {gone}")
            return False
        except BadAnswer as error:
            world.fail("answer", f"{action}: {error}")
            return False
        world.note("answer", action.number, answer.status, len(answer.body))
        self._check(action, answer, own, connection.sent_at)
        return answer.headers.get("connection") != "close"

    def _may_lose(self, action: Action) -> bool:
        # What reads too slowly is cut, and what never was a request is not answered.
        settings = self._scenario.settings
        is_small = settings.config.http.max_write_buffer < 100_000
        return bool(action.sip or self._scenario.has_losses) or is_small or action.api == "garbage"

    def _states(self, name: str, since: float) -> frozenset[str]:
        """Returns the states in which a key or a model may have been from some time to now."""
        return self._operator.timeline.between(name, since, self.world.now)

    def _check_key(self, key: str, sent_at: float, status: int) -> None:
        """Checks that an answer has status 401 where its key did not count, and nowhere else."""
        states = self._states(key, sent_at)
        if key in self._scenario.keys and ("away" if status == 401 else "there") not in states:
            self.world.fail("key", f"status {status} for {key}, which is {set(states)}")

    def _is_removed(self, key: str) -> bool:
        """Returns whether a key has not counted for so long that its requests must have ended."""
        return self._states(key, self.world.now - _MOST_TO_CUT) == {"away"}

    def _is_refused(self, action: Action, answer: Answer, sent_at: float) -> bool:
        """Returns whether an answer refuses a key, or a model that may be away, and checks that it
        refuses a model that must be."""
        if action.api in ("garbage", "health"):
            return False
        if answer.status == 401 and action.key:
            return True  # as `_check_key` has found right
        states, status = self._states(action.model, sent_at), answer.status
        # A stream may have begun before its model is there, for the sake of pings.
        text = str(answer.frames) if answer.frames else answer.body.decode(errors="replace")
        is_refusal = status in (404, 503) or (len(answer.frames) < 3 and "error" in text)
        is_away = is_refusal and any(reason in text for reason in _AWAY)
        is_broken = is_refusal and "could not be loaded" in text
        if (is_away and "away" in states) or (is_broken and BROKEN in states):
            return True
        if action.api == "unload" and status == 200 and BROKEN in states:
            return True  # it is not loaded, which is in order
        if status != 400 and states <= {"away", BROKEN}:
            self.world.fail("model", f"{action}: status {status} for one that is {set(states)}")
            return True
        return False

    def _check(self, action: Action, answer: Answer, own: SentText | None, sent_at: float) -> None:
        settings = self._scenario.settings
        if self._is_refused(action, answer, sent_at):
            return
        if answer.status == 503 and self._scenario.has_losses:
            return
        if "file" in action.fields and answer.status == 503 and b"is loading" in answer.body:
            return  # uploads do not wait for a server that starts
        if action.api == "garbage":
            is_starting = answer.status == 503 and settings.num_models > 1
            if not (400 <= answer.status <= 501 or is_starting):
                self.world.fail("garbage", f"{action}: {answer.status}")
            return
        if action.api == "unload" and answer.status == 503:
            return  # it is in use
        if action.api in ("health", "load", "unload"):
            if answer.status != 200:
                self.world.fail("status", f"{action}: {answer.status} {answer.body[:200]!r}")
            return
        if settings.engine.max_num_queued_requests < 100 and is_refused(answer):
            return
        if self._scenario.has_losses and ends_by_accident(answer):
            return
        is_encoding = action.api.startswith("/")
        most_cached = 0 if is_encoding else self._texts.most_cached(action, own)
        variants = sorted(self._states(action.model, sent_at) & set(VARIANTS))
        faults = []
        for variant in variants:
            weights = weights_name(action.model, variant)
            if action.model == SPEECH and "file" in action.fields:
                faults = faults_of_speech(action, answer, weights)
            elif is_encoding:
                encoding = Encoding(action, settings.encoder, weights)
                faults = encoding.faults(answer)
                self._num_encoded += encoding.num_tokens
            else:
                faults = faults_of(replace(action, model=weights), answer, settings, most_cached)
            if not faults:
                break
        for fault in faults:
            self.world.fail("answer", f"{action}: {fault}")
        if answer.status == 200 and not action.sip and self._is_removed(action.key):
            self.world.fail("key", f"{action}: an answer for a key that was removed")
        first = (answer.first_at or answer.ended_at) - answer.asked_at
        most = _MOST_TO_FIRST * (2 if settings.encoders else 1)  # which take turns with engines
        if first > most + (1000 if action.sip else 0):
            self.world.fail("late", f"{action}: first token after {first:.1f} s")

    # What the server keeps

    async def _check_idle(self, server: SimServer) -> None:
        """Some seconds after the last client, nothing of them is left."""
        assert server.loop is not None
        done = asyncio.Event()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)

        def look() -> None:
            self._check_http(server)
            for backend in server.backends:
                if backend.is_live:
                    self._check_backend(backend)
            if server.turn is not None:
                self._check_encoders(server, server.turn)
            if server.supply is not None:
                self._check_supply(server.supply, server)
            for runs in server.runs:
                self._check_kept(responses=runs.num_running, places=runs._places.used)
            if server.batches is not None:
                self._check_batches(server.batches)
            if server.store is not None:
                self._check_kept(watches=list(server.store._watchers._watches)[1:])
            loop.inject(done.set)

        if server.main.has_ended:
            return
        server.loop.inject(look)
        await done.wait()

    def _check_supply(self, supply: ModelSupply, server: SimServer) -> None:
        """Checks that no model is in use, and that only models of the list are in memory."""
        residents = list(supply._residency)
        self._check_kept(models_in_use=[r for r in residents if r.num_uses or r.num_waiting])
        given = {name for name, _ in self._operator.models}
        there = [backend.name for backend in server.backends if backend.is_live]
        there = sorted([*there, *(encoder.model.name for encoder in server.live_encoders)])
        loaded = sorted(r.name for r in residents if not r.uses_no_memory)
        if there != loaded or not given >= set(there):
            self.world.fail("kept", f"{there} are in memory, {loaded} loaded, {given} in the list")

    def _check_kept(self, **left: Any) -> None:
        """Checks that nothing is left of what has ended."""
        for name, kept in left.items():
            if kept:
                self.world.fail("kept", f"{name}: {kept}")

    def _check_http(self, server: SimServer) -> None:
        http = server.http
        if http is not None and http._state is not None:
            state = http._state
            self._check_kept(connections=len(state.connections), tasks=len(state.tasks))
            self._check_kept(handshakes=http.num_handshakes, bytes_of_bodies=http.num_body_bytes)

    def _check_batches(self, batches: BatchService) -> None:
        runner, store = batches._runner, batches._store
        if runner is None or store is None:
            self.world.fail("kept", f"batches are not available: {batches._reason}")
            return
        self._check_kept(batches=len(runner._runs), shares=runner._unfinished.used)
        self._check_kept(lines=runner._parts.slots.num_used, pins=store._pins)

    def _check_backend(self, backend) -> None:  # type: ignore[no-untyped-def]
        engine, requests, blocks = backend.engine, backend._requests, backend.engine.blocks
        requests._places.check()
        self._check_kept(
            requests=engine.has_work or len(requests._requests),
            blocks=blocks.num_blocks - blocks.num_free_blocks,
            permits=8 - backend._undelivered._free.qsize(),
            places=requests._places.used,
            waiting=requests._num_waiting,
        )
        try:
            engine.check()
        except AssertionError as error:
            self.world.fail("books", str(error), error)

    def _check_encoders(self, server: SimServer, turn: CheckedTurn) -> None:
        for encoder in server.live_encoders:
            self._check_kept(**{encoder.model.name: encoder.kept()})
        self._check_kept(turns=turn.kept(len(server.live_encoders)))
        num_tokens = sum(one.backend.stats().counters.num_prompt_tokens for one in server.encoders)
        if self._num_servers == 1 and num_tokens < self._num_encoded:
            self.world.fail("usage", f"{num_tokens} tokens, and {self._num_encoded} in answers")

    def _check_end(self, server: SimServer) -> None:
        if server.outcome is None or server.outcome:
            self.world.fail("end", f"the server ends with {server.outcome!r}")
        self._check_http(server)
        # A model of speech that was loaded too late is not started, nor closed.
        is_late = any(not one.backend._link.is_started for one in server.encoders)
        abandoned = (*_ABANDONED, "speech") if is_late else _ABANDONED
        if not is_late and any(not peer.is_dead for peer in server.peers):
            self.world.fail("threads", "a process is left")
        threads = [thread.name for thread in server.process.threads]
        left = [name for name in threads if name not in abandoned]
        if left:
            self.world.fail("threads", f"threads are left: {left}")


async def until(condition: Callable[[], bool]) -> None:
    """Returns some time after a condition has come true."""
    while not condition():  # noqa: ASYNC110 (no event is made for it)
        await asyncio.sleep(0.01)


_AWAY: Final = ("does not exist", "no longer served", "' not found")
"""What refusals of an unknown model say, in all dialects."""

_REASONS: Final = (
    "shutting down",
    "has failed",
    "no step has ended",
    "the device is gone",
    "it does not stop",
    "not finite",
    "not numbers",
    "the state cannot be",
)


def is_refused(answer: Answer) -> bool:
    """Returns whether an answer says that too many requests wait."""
    if answer.status == 429:
        return True
    frames = [frame for frame in answer.frames if frame != "[DONE]" and "error" in frame]
    return any("which is the limit" in str(frame["error"]) for frame in frames)


def ends_by_accident(answer: Answer) -> bool:
    """Returns whether an answer is the error of a server that ends."""
    if answer.status in (500, 503):
        return any(reason in answer.body.decode() for reason in _REASONS)
    errors = [frame["error"] for frame in answer.frames if frame != "[DONE]" and "error" in frame]
    return len(errors) == 1 and any(reason in str(errors[0]) for reason in _REASONS)


def _request(action: Action) -> bytes:
    if action.api == "garbage":
        return action.prompt.encode()
    if action.api == "health":
        return render("GET", "/health", None)
    if action.api in ("load", "unload"):
        return render("POST", f"/v1/models/{action.model}/{action.api}", {})
    if "file" in action.fields:
        return render_speech(action)
    path = "/v1/chat/completions" if action.api == "chat" else f"/v1/{action.api}"
    path = action.api if action.api.startswith("/") else path
    return render("POST", path, body_of(action), action.headers)


def simulate(scenario: Scenario, *, record: bool = False) -> Outcome:
    return Simulation(scenario, record=record).run()


def shrink(scenario: Scenario, outcome: Outcome, most_runs: int = 200) -> Scenario:
    """Returns the scenario with as few actions as still fail in the same way."""
    kinds = {kind for kind, _ in outcome.failures}

    def fails(candidate: Scenario) -> bool:
        return bool(kinds & {kind for kind, _ in simulate(candidate).failures})

    numbers = sorted(scenario.numbers)
    size, runs = max(1, len(numbers) // 2), 0
    while runs < most_runs:
        for start in range(0, len(numbers), size):
            kept = numbers[:start] + numbers[start + size :]
            runs += 1
            if kept and fails(candidate := scenario.only(set(kept))):
                scenario, numbers = candidate, kept
                break
        else:
            if size == 1:
                break
            size //= 2
    return scenario


__all__ = ["Outcome", "make_scenario", "replace", "shrink", "simulate"]
