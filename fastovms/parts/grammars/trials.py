"""Compiles clients' grammars first in a separate process, which may crash without harm."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import signal
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple, Protocol

import orjson

from fastovms.backend_stats import GrammarStats
from fastovms.backends.engine_thread import start_thread
from fastovms.backends.paged.backend import Grammars
from fastovms.backends.processes import ChildProcess, exit_description
from fastovms.errors import BackendUnavailable, Overloaded
from fastovms.fair_queue import FairQueue
from fastovms.grammar.compiler import GrammarCompiler
from fastovms.grammar.state import UnusableGrammar
from fastovms.params import Grammar, ModelInfo
from fastovms.server_config import DEMO_MODEL

logger = logging.getLogger(__name__)


_MAX_REFUSED: Final = 256
_MAX_REASON: Final = 1000


class RefusedGrammars:
    """Caches the refusals of grammars, since a tool's schema comes with every request and a trial
    may take seconds. Refusals that a second trial might not repeat are not cached. Thread-safe."""

    def __init__(self) -> None:
        self._reasons: OrderedDict[bytes, str] = OrderedDict()
        self._lock = Lock()

    def check(self, grammar: Grammar) -> None:
        """Raises UnusableGrammar for a grammar that was refused before."""
        key = digest_of(grammar)
        with self._lock:
            reason = self._reasons.get(key)
            if reason is None:
                return
            self._reasons.move_to_end(key)
        raise UnusableGrammar(grammar, reason)

    @contextmanager
    def remembering(self, grammar: Grammar) -> Iterator[None]:
        """Caches the refusal of the grammar if the `with` statement raises UnusableGrammar, unless
        another trial could give another verdict."""
        try:
            yield
        except UnusableGrammar as error:
            if not error.is_certain:
                raise
            with self._lock:
                self._reasons[digest_of(grammar)] = error.reason[:_MAX_REASON]
                while len(self._reasons) > _MAX_REFUSED:
                    self._reasons.popitem(last=False)
            raise


def digest_of(grammar: Grammar) -> bytes:
    """Returns 32 bytes that identify a grammar."""
    parts = (grammar.kind.name, grammar.source, repr(grammar.tree))
    return hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).digest()


_TOKENIZER: Final = DEMO_MODEL / "tokenizer.json"


@dataclass(frozen=True, slots=True)
class SmallVocabulary:
    """The ids and special tokens of a model, from which a tokenizer with few texts is made.

    Attributes:
        vocab_size: the model's.
        eos_token_ids: the model's, ascending.
        special_tokens: ids of the model's by their texts.
    """

    vocab_size: int
    eos_token_ids: tuple[int, ...]
    special_tokens: dict[str, int]

    def tokenizer_json(self) -> str:
        """Returns a Hugging Face tokenizer.json with the texts of the demo model, for the ids that
        exist."""
        tokenizer = orjson.loads(_TOKENIZER.read_bytes())
        texts = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__)
        own = {token["content"] for token in tokenizer["added_tokens"]}
        texts = [text for text in texts if text not in own and text not in self.special_tokens]
        # Single bytes must get ids even if the vocabulary is smaller than the list.
        texts.sort(key=len)
        taken = {*self.special_tokens.values(), *self.eos_token_ids}
        free = islice(_without(range(self.vocab_size), taken), len(texts))
        tokenizer["model"] |= {"vocab": dict(zip(texts, free, strict=False)), "merges": []}
        form = tokenizer["added_tokens"][0]
        tokenizer["added_tokens"] = [
            {**form, "id": token_id, "content": text, "special": True}
            for text, token_id in self.special_tokens.items()
        ]
        tokenizer["post_processor"] = None
        return orjson.dumps(tokenizer).decode()


def _without(numbers: Iterable[int], taken: set[int]) -> Iterable[int]:
    return (number for number in numbers if number not in taken)


TOO_MUCH: Final = "it is too much for the compiler"
TOO_SLOW: Final = "it takes too long to compile"

_OWN_SIGNALS: Final = (
    signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP,
)  # fmt: skip
"""The signals by which a compiler ends its own process. Others come from outside, as the SIGKILL of
a system that is out of memory does."""

_SIGNALS: Final = {exit_description(-number): number for number in signal.Signals}
"""The numbers of signals, by the description of a process that such a signal ended."""

_START_TIMEOUT: Final = 60.0
"""Seconds within which the process must be ready."""


class Verdict(NamedTuple):
    """The answer of a process about a grammar.

    Attributes:
        fault: the error of the grammar; "" = none.
        num_bytes: the size of the compiled grammar in bytes, as measured by the process.
        is_slow: whether the only problem is the time limit.
        has_died: whether the process died.
        is_certain: whether another trial would give the same verdict. A busy machine or a lack of
            memory makes a verdict uncertain.
    """

    fault: str = ""
    num_bytes: int = 0
    is_slow: bool = False
    has_died: bool = False
    is_certain: bool = True


def verdict_on_death(number: int | None) -> Verdict:
    """Returns the verdict on a grammar whose process was killed by this signal; None = the process
    ended otherwise."""
    if number == signal.SIGPROF:  # see `limit_time`
        return Verdict(TOO_SLOW, is_slow=True)
    if number == signal.SIGALRM:
        return Verdict(TOO_SLOW, is_slow=True, is_certain=False)
    return Verdict(TOO_MUCH, has_died=True, is_certain=number in _OWN_SIGNALS)


class TrialTimeout(Exception):
    """A grammar needs more time for its trial than it was given."""


class Trial:
    """Tries one grammar at a time, on one thread. Only `kill` may be called on other threads.

    The process sends None when it is ready, receives a number and a `Grammar`, and answers with the
    number and a `Verdict`. A process that ends is replaced at once.

    Args:
        timeout: seconds after which a silent process is killed.

    Attributes:
        num_deaths: the number of processes that died during a trial.
    """

    def __init__(self, start: Callable[[], ChildProcess], *, timeout: float) -> None:
        self._start = start
        self._timeout = timeout
        self._peer: ChildProcess | None = None
        self._is_ready = False
        self._has_started = False
        self._is_closed = False
        self._number = 0
        self.num_deaths = 0

    @property
    def is_starting(self) -> bool:
        """Whether the process runs and has not answered yet. May be called on any thread."""
        return self._peer is not None and not self._has_started

    def warm_up(self) -> None:
        """Starts the process, if it does not run, without waiting until it is ready. If that fails,
        `ask` retries."""
        with contextlib.suppress(OSError):
            self._start_process()

    def ask(self, grammar: Grammar) -> Verdict:
        """Tries a grammar and returns the verdict. Raises BackendUnavailable if the process cannot
        be started."""
        connection = self._ready_connection()
        self._number += 1
        try:
            connection.send((self._number, grammar))
            self._is_ready = False
            verdict = self._answer(connection)
        except (EOFError, OSError):
            ending = "" if self._peer is None else self._peer.wait()
            verdict = verdict_on_death(_SIGNALS.get(ending))
            self._replace()
        if verdict is None:
            verdict = Verdict(TOO_SLOW, is_slow=True, is_certain=False)
            self._replace()
        self.num_deaths += verdict.has_died
        return verdict

    def kill(self) -> None:
        """Kills the process and prevents another from being started. A waiting `ask` returns."""
        self._is_closed = True
        peer = self._peer
        if peer is not None:
            peer.kill()

    def close(self) -> None:
        """Ends the process, if it runs."""
        peer, self._peer = self._peer, None
        if peer is not None:
            peer.end()

    def _replace(self) -> None:
        self.close()
        self.warm_up()

    def _start_process(self) -> None:
        if self._peer is None and not self._is_closed:
            self._is_ready = self._has_started = False
            self._peer = self._start()

    def _answer(self, connection: Connection[Any, Any]) -> Verdict | None:
        """Returns the verdict on the last grammar; None if it does not come in time."""
        deadline = time.monotonic() + self._timeout
        while connection.poll(max(0.0, deadline - time.monotonic())):
            message = connection.recv()
            if message is None:
                self._is_ready = self._has_started = True
            elif message[0] == self._number:  # ignore the answer of an abandoned trial
                verdict: Verdict = message[1]
                return verdict
        return None

    def _ready_connection(self) -> Connection[Any, Any]:
        try:
            self._start_process()
            if self._peer is None:
                raise BackendUnavailable("the server is shutting down")
            connection = self._peer.connection
            while not self._is_ready:
                if not connection.poll(_START_TIMEOUT):
                    raise TimeoutError
                self._is_ready = self._has_started = connection.recv() is None
        except (EOFError, OSError) as error:
            self.close()
            raise BackendUnavailable("grammars cannot be compiled now") from error
        return connection


_MAX_SECONDS: Final = 4.5
"""Seconds that one grammar may take, waiting included, the start of a process not. A request that
comes after this may find it ready."""

_FIRST: Final = (32, 256)
"""The maximum number of waiting grammars of one client, and of all, for the first lane."""
_LATER: Final = (8, 32)
"""The maximum number of waiting grammars of one client, and of all, for each of the other lanes."""


class _QueuedGrammar:
    """A grammar that waits for its trial, and the future of the result.

    Attributes:
        is_begun: whether a lane has started on it, so that `done` can no longer be cancelled.
        is_wanted: whether a request waits for it.
    """

    __slots__ = ("client", "done", "grammar", "is_begun", "is_wanted")

    def __init__(self, grammar: Grammar, client: str) -> None:
        self.grammar = grammar
        self.client = client
        self.done: Future[Grammar] = Future()
        self.is_begun = False
        self.is_wanted = True


class TrialLanes:
    """Tries grammars in lanes. A lane is a thread with a queue and a limit of CPU seconds. A
    grammar that exceeds the limit is tried again in the next lane, whose limit is higher. Clients
    take turns.

    Args:
        lanes: in order of their time limits. The first is warmed up by `start`, the others by their
            first grammar.
    """

    def __init__(self, lanes: Sequence[_Lane], *, max_seconds: float = _MAX_SECONDS) -> None:
        self._lanes = tuple(lanes)
        self._max_seconds = max_seconds
        self._changed = threading.Condition()  # guards all attributes below
        limits = [_FIRST, *[_LATER] * (len(lanes) - 1)]
        self._queues: list[FairQueue[_QueuedGrammar]] = [
            FairQueue("grammars", per_client=per_client, total=total)
            for per_client, total in limits
        ]
        self._threads: dict[int, threading.Thread] = {}
        self._num_running = 0
        self._num_trials = 0
        self._num_overloads = 0
        self._is_closed = False

    @property
    def stats(self) -> GrammarStats:
        with self._changed:
            return GrammarStats(
                num_running=self._num_running,
                num_waiting=sum(map(len, self._queues)),
                num_trials=self._num_trials,
                num_deaths=sum(lane.num_deaths for lane in self._lanes),
                num_overloads=self._num_overloads,
            )

    def start(self) -> None:
        """Starts to warm up the first lane, without waiting."""
        with self._changed:
            self._start_lane(0)

    async def run(self, grammar: Grammar, client: str) -> Grammar:
        """Tries a grammar and returns it in the backend's format once it has passed. Raises
        Overloaded if too many wait, or this one has waited for too long; RequestError if the
        grammar cannot be used; BackendUnavailable if the lanes are closed or not working. `client`
        is the sender; grammars of one client are tried in order."""
        job = _QueuedGrammar(grammar, client)
        try:
            self._enter(job, 0)
            done = asyncio.wrap_future(job.done)
            try:
                await self._wait(done)
                if done.done():
                    return done.result()
            finally:
                done.cancel()
            raise Overloaded(f"the grammar could not be tried within {self._max_seconds:g} s")
        except Overloaded as error:
            self._num_overloads += 1
            raise Overloaded(f"{grammar.param}: {error}") from None
        finally:
            with self._changed:
                job.is_wanted = False
                for queue in self._queues:
                    queue.discard(client, job)

    async def _wait(self, done: asyncio.Future[Grammar]) -> None:
        """Returns when the trial is done or has had its time. The time starts again where a process
        of a lane was starting, which takes long on a busy machine."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + _START_TIMEOUT
        is_starting = True
        while is_starting and not done.done() and loop.time() < ends_at:
            is_starting = self._is_starting()
            await asyncio.wait((done,), timeout=self._max_seconds)
            is_starting = is_starting or self._is_starting()

    def _is_starting(self) -> bool:
        return any(lane.is_starting for lane in self._lanes)

    def close(self) -> None:
        """Ends all lanes. Their threads release their resources."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            waiting = [job for queue in self._queues for job in queue.clear()]
            started = [self._lanes[number] for number in self._threads]
            self._changed.notify_all()
        for job in waiting:
            _refuse(job, BackendUnavailable("the server is shutting down"))
        for lane in started:
            lane.kill()

    def _enter(self, job: _QueuedGrammar, number: int) -> None:
        """Puts a job into a lane's queue. Raises Overloaded if too many wait; BackendUnavailable if
        the lanes are closed."""
        with self._changed:
            if self._is_closed:
                raise BackendUnavailable("the server is shutting down")
            if not job.is_wanted:
                raise Overloaded("no request waits for the grammar any more")
            displaced = self._queues[number].add(job.client, job)
            self._start_lane(number)
            self._changed.notify_all()
        if displaced is not None:
            _refuse(displaced, Overloaded("too many grammars of this client are waiting"))

    def _start_lane(self, number: int) -> None:
        if number not in self._threads and not self._is_closed:
            self._threads[number] = start_thread(
                lambda: self._serve(number), name=f"grammar-lane-{number}"
            )

    # Methods of the lanes' threads

    def _serve(self, number: int) -> None:
        """Serves the lane until it is closed. If it fails, the next job starts it again."""
        lane = self._lanes[number]
        try:
            lane.warm_up()
            while (job := self._take(number)) is not None:
                try:
                    self._attempt(job, number)
                finally:
                    with self._changed:
                        self._num_running -= 1
        except Exception:
            logger.exception("grammars: a thread that tries grammars failed")
        finally:
            try:
                lane.close()
            finally:
                with self._changed:
                    del self._threads[number]
                    stranded = self._queues[number].clear()
                for job in stranded:
                    _refuse(job, BackendUnavailable("grammars cannot be compiled now"))

    def _take(self, number: int) -> _QueuedGrammar | None:
        with self._changed:
            while not self._is_closed:
                job = self._queues[number].take()
                if job is None:
                    self._changed.wait()
                elif job.is_begun or job.done.set_running_or_notify_cancel():
                    job.is_begun = True
                    self._num_running += 1
                    self._num_trials += 1
                    return job
        return None

    def _attempt(self, job: _QueuedGrammar, number: int) -> None:
        is_last = number + 1 == len(self._lanes)
        try:
            job.done.set_result(self._lanes[number].attempt(job.grammar, is_last=is_last))
        except TrialTimeout:
            try:
                self._enter(job, number + 1)
            except (Overloaded, BackendUnavailable) as error:
                job.done.set_exception(error)
        except Exception as error:
            job.done.set_exception(error)
        except BaseException:  # a panic of Rust is a BaseException
            logger.exception("grammars: the compiler of a grammar panicked")
            job.done.set_exception(UnusableGrammar(job.grammar, TOO_MUCH))


def _refuse(job: _QueuedGrammar, error: Exception) -> None:
    if job.is_begun or job.done.set_running_or_notify_cancel():
        job.is_begun = True
        job.done.set_exception(error)


LANE_SECONDS: Final = (0.05, 0.3, 1.5)
"""CPU seconds that a grammar may take in each lane. Nearly all take less than 0.02, and what takes
the most is compiled here before its client has waited for 5 s."""

_PATIENCE: Final = 12.0
"""The factor on the time limit of an answer that allows for a busy machine. The process itself
gives up a little sooner."""

_MIN_TIMEOUT: Final = 10.0

StartTrial = Callable[[float], ChildProcess]
"""Starts a process that tries grammars, with this number of CPU seconds for each."""


class PassedGrammars(Protocol):
    """Stores the grammars that have passed their trial. Implementations are thread-safe."""

    def find(self, grammar: Grammar) -> Grammar | None:
        """Returns the grammar in the backend's format, if it is stored."""

    def keep(self, grammar: Grammar, verdict: Verdict) -> Grammar:
        """Stores a grammar that has passed, and returns it in the backend's format. Raises
        UnusableGrammar."""


class GuardedGrammars(Grammars):
    """Tries each grammar, and caches the results. A few characters can keep a compiler busy for
    hours, or end its process. So each grammar is tried in another process before the server's own
    compiler gets it.

    Args:
        passed: stores the grammars that have passed.
        lanes: the trials of each lane, all of which a grammar has to pass.
    """

    def __init__(self, passed: PassedGrammars, lanes: Sequence[Sequence[Trial]]) -> None:
        self._passed = passed
        self._refused = RefusedGrammars()
        self._lanes = TrialLanes([_Lane(trials, passed, self._refused) for trials in lanes])

    @property
    def stats(self) -> GrammarStats:
        return self._lanes.stats

    def start(self) -> None:
        """Starts the first trial processes, in the background."""
        self._lanes.start()

    async def compile(self, grammar: Grammar, client: str) -> Grammar:
        """Compiles a grammar; see `GenerationBackend.compile_grammar`."""
        found = self._passed.find(grammar)
        if found is not None:
            return found
        self._refused.check(grammar)
        return await self._lanes.run(grammar, client)

    def close(self) -> None:
        """Ends the processes."""
        self._lanes.close()


class _Lane:
    """A lane: a place where one grammar at a time is tried, with one compiler after the other.
    Methods but `kill` are called on the lane's own thread."""

    def __init__(
        self, trials: Sequence[Trial], passed: PassedGrammars, refused: RefusedGrammars
    ) -> None:
        self._trials = trials
        self._passed = passed
        self._refused = refused

    @property
    def num_deaths(self) -> int:
        return sum(trial.num_deaths for trial in self._trials)

    @property
    def is_starting(self) -> bool:
        return any(trial.is_starting for trial in self._trials)

    def warm_up(self) -> None:
        for trial in self._trials:
            trial.warm_up()

    def attempt(self, grammar: Grammar, *, is_last: bool) -> Grammar:
        """Tries a grammar, and returns it in the backend's format. Raises TrialTimeout if the
        grammar needs more time than this lane has, and it is not the last; RequestError if the
        grammar cannot be used; BackendError if it cannot be tried now. `is_last` says whether this
        is the lane with the most time."""
        found = self._passed.find(grammar)  # another request may have tried it
        if found is not None:
            return found
        self._refused.check(grammar)
        verdict = Verdict()
        with self._refused.remembering(grammar):
            for trial in self._trials:
                verdict = _checked(trial.ask(grammar), grammar, is_last=is_last)
            return self._passed.keep(grammar, verdict)

    def kill(self) -> None:
        for trial in self._trials:
            trial.kill()

    def close(self) -> None:
        for trial in self._trials:
            trial.close()


def _checked(verdict: Verdict, grammar: Grammar, *, is_last: bool) -> Verdict:
    """Returns the verdict, if the grammar has passed. Raises TrialTimeout if the grammar exceeded
    the time limit and is not `is_last`, that is, another trial with a higher limit follows;
    UnusableGrammar if it has failed for another reason, or for good."""
    if verdict.is_slow and not is_last:
        raise TrialTimeout
    if verdict.fault:
        raise UnusableGrammar(grammar, verdict.fault, is_certain=verdict.is_certain)
    return verdict


class _CompiledGrammars:
    """Stores grammars in the cache of the paged engine's compiler."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler

    def find(self, grammar: Grammar) -> Grammar | None:
        compiled = self._compiler.cached(grammar)
        return None if compiled is None else replace(grammar, compiled=compiled)

    def keep(self, grammar: Grammar, verdict: Verdict) -> Grammar:
        compiled = self._compiler.compile(grammar, num_bytes=verdict.num_bytes)
        return replace(grammar, compiled=compiled)


def load_grammar_compiler(model_dir: Path, model: ModelInfo) -> GrammarCompiler | None:
    """Returns the compiler for the model's tokenizer.json, or None, with a warning, if it cannot be
    used."""
    path = model_dir / "tokenizer.json"
    if not path.is_file():
        logger.warning("structured outputs are not available: %s is missing", path)
        return None
    try:
        return GrammarCompiler(
            path.read_text(encoding="utf-8"),
            vocab_size=model.vocab_size,
            eos_token_ids=sorted(model.eos_token_ids),
        )
    except ValueError as error:
        logger.warning("structured outputs are not available: %s: %s", path, error)
        return None


def guard_compiler(
    compiler: GrammarCompiler, *, start: StartTrial | None = None
) -> GuardedGrammars:
    """Returns the guard of the paged engine's compiler. `start` starts the processes; None =
    `trial_starter`."""
    start = start or trial_starter(compiler)
    return GuardedGrammars(
        _CompiledGrammars(compiler), [[lane_trial(start, seconds)] for seconds in LANE_SECONDS]
    )


def lane_trial(start: StartTrial, seconds: float) -> Trial:
    """Returns the trial of a lane with this limit of CPU seconds."""
    timeout = max(_MIN_TIMEOUT, seconds * _PATIENCE)
    return Trial(lambda: start(seconds), timeout=timeout)


def trial_starter(compiler: GrammarCompiler) -> StartTrial:
    """Returns a starter of processes that compile grammars like this compiler."""
    vocabulary = SmallVocabulary(
        compiler.vocab_size, tuple(sorted(compiler.eos_token_ids)), compiler.special_tokens
    )

    def start(seconds: float) -> ChildProcess:
        # Long trials get a lower priority than the engine.
        niceness = 0 if seconds == LANE_SECONDS[0] else 5
        module = "fastovms.parts.grammars.trial_process"
        process = ChildProcess(module, str(seconds), str(niceness))
        process.connection.send(vocabulary)
        return process

    return start
