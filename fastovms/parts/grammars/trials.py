"""Tries clients' grammars in a separate process, which may crash without harm, before they are
compiled in the server."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import signal
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
    """Caches the errors of rejected grammars, because a tool's schema comes with every request and
    a trial may take seconds. Errors that a second trial might not repeat are not cached.
    Thread-safe."""

    def __init__(self) -> None:
        self._reasons: OrderedDict[bytes, str] = OrderedDict()
        self._lock = Lock()

    def check(self, grammar: Grammar) -> None:
        """Raises UnusableGrammar if the grammar was rejected before."""
        key = digest_of(grammar)
        with self._lock:
            reason = self._reasons.get(key)
            if reason is None:
                return
            self._reasons.move_to_end(key)
        raise UnusableGrammar(grammar, reason)

    @contextmanager
    def remembering(self, grammar: Grammar) -> Iterator[None]:
        """Caches the error if the `with` statement raises UnusableGrammar, unless another trial
        might have another result."""
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
    """The token ids and special tokens of a model, from which a small tokenizer is built for
    trials.

    Attributes:
        vocab_size: the size of the model's vocabulary.
        eos_token_ids: the model's end tokens, ascending.
        special_tokens: the ids of the model's special tokens by their text.
    """

    vocab_size: int
    eos_token_ids: tuple[int, ...]
    special_tokens: dict[str, int]

    def tokenizer_json(self) -> str:
        """Returns a Hugging Face tokenizer.json that has the demo model's tokens for the model's
        ids."""
        tokenizer = orjson.loads(_TOKENIZER.read_bytes())
        texts = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__)
        own = {token["content"] for token in tokenizer["added_tokens"]}
        texts = [text for text in texts if text not in own and text not in self.special_tokens]
        # Single bytes must get ids even if the vocabulary is smaller than the list.
        texts.sort(key=len)
        taken = {*self.special_tokens.values(), *self.eos_token_ids}
        free = (token_id for token_id in range(self.vocab_size) if token_id not in taken)
        tokenizer["model"] |= {"vocab": dict(zip(texts, free, strict=False)), "merges": []}
        form = tokenizer["added_tokens"][0]
        tokenizer["added_tokens"] = [
            {**form, "id": token_id, "content": text, "special": True}
            for text, token_id in self.special_tokens.items()
        ]
        tokenizer["post_processor"] = None
        return orjson.dumps(tokenizer).decode()


TOO_MUCH: Final = "it is too much for the compiler"
TOO_SLOW: Final = "it takes too long to compile"

_CRASH_SIGNALS: Final = (
    signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP,
)  # fmt: skip
"""The signals by which a compiler crashes its own process. Other signals come from outside, such as
SIGKILL from a system that is out of memory."""

_SIGNALS: Final = {exit_description(-number): number for number in signal.Signals}
"""Signal numbers by the description of a process that the signal ended."""

_START_TIMEOUT: Final = 60.0
"""Seconds within which the process must be ready."""


class Verdict(NamedTuple):
    """The result of a trial.

    Attributes:
        fault: the error of the grammar; "" = the grammar is usable.
        num_bytes: the size of the compiled grammar in bytes, as measured by the process.
        is_slow: whether the grammar only exceeded the time limit.
        has_died: whether the process died.
        is_certain: whether another trial would have the same result; not if the machine was busy or
            out of memory.
    """

    fault: str = ""
    num_bytes: int = 0
    is_slow: bool = False
    has_died: bool = False
    is_certain: bool = True


def verdict_on_death(number: int | None) -> Verdict:
    """Returns the result for a grammar whose process was killed by a signal; None = the process
    ended otherwise."""
    if number == signal.SIGPROF:  # see `limit_time`
        return Verdict(TOO_SLOW, is_slow=True)
    if number == signal.SIGALRM:
        return Verdict(TOO_SLOW, is_slow=True, is_certain=False)
    return Verdict(TOO_MUCH, has_died=True, is_certain=number in _CRASH_SIGNALS)


class TrialTimeout(Exception):
    """Raised if a trial needs more time than its lane allows."""


class Trial:
    """Tries one grammar at a time, on one thread. Only `kill` may be called on other threads.

    The process sends None when it is ready, receives a number and a `Grammar`, and answers with the
    number and a `Verdict`. A process that has ended is replaced at once.

    Args:
        timeout: seconds after which a process that does not answer is killed.

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
        """Whether the process runs but is not ready yet. May be called on any thread."""
        return self._peer is not None and not self._has_started

    def warm_up(self) -> None:
        """Starts the process, if it does not run, without waiting until it is ready. If the start
        fails, `ask` retries it."""
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
        """Kills the process and prevents another start. A waiting `ask` returns."""
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
        """Returns the result for the last grammar; None = no result within the timeout."""
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
            raise BackendUnavailable("grammars cannot be compiled now; retry later") from error
        return connection


_MAX_SECONDS: Final = 4.5
"""The maximum seconds that one grammar takes, waiting included, without the start of a process. The
client's next request may find the grammar compiled."""

_FIRST: Final = (32, 256)
"""The maximum number of waiting grammars of one client, and of all, for the first lane."""
_LATER: Final = (8, 32)
"""The maximum number of waiting grammars of one client, and of all, for each of the other lanes."""


class _QueuedGrammar:
    """A grammar that waits for its trial, and the future of the result.

    Attributes:
        is_begun: whether a lane has begun the trial, so that `done` can no longer be cancelled.
        is_wanted: whether a request waits for the result.
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
        lanes: ascending by their time limits. `start` warms up the first lane; the others start
            with their first grammar.
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
        """Begins to warm up the first lane, without waiting."""
        with self._changed:
            self._start_lane(0)

    async def run(self, grammar: Grammar, client: str) -> Grammar:
        """Tries a grammar, and returns it in the backend's format once it has passed. Raises
        Overloaded if too many grammars wait, or this one has waited too long; RequestError if the
        grammar is unusable; BackendUnavailable if the lanes are closed or have failed. `client` is
        the sender; the grammars of one client are tried in order."""
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
            raise Overloaded(
                f"the grammar could not be tried within {self._max_seconds:g} s; retry later"
            )
        except Overloaded as error:
            self._num_overloads += 1
            raise Overloaded(f"{grammar.param}: {error}") from None
        finally:
            with self._changed:
                job.is_wanted = False
                for queue in self._queues:
                    queue.discard(client, job)

    async def _wait(self, done: asyncio.Future[Grammar]) -> None:
        """Waits until the trial is done or has used up its time. The time starts again if a process
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
        """Closes all lanes. Their threads release their resources."""
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
        """Appends a job to a lane's queue. Raises Overloaded if too many jobs wait;
        BackendUnavailable if the lanes are closed."""
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
        """Runs a lane's jobs until the lane is closed. If the thread fails, the next job restarts
        it."""
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
"""CPU seconds that a grammar may take in each lane. Nearly all grammars take less than 0.02 s; the
slowest possible one is compiled before its client has waited for 5 s."""

_PATIENCE: Final = 12.0
"""The factor from a lane's limit of CPU seconds to the timeout of its answers, which allows for a
busy machine. The process itself gives up slightly earlier."""

_MIN_TIMEOUT: Final = 10.0

StartTrial = Callable[[float], ChildProcess]
"""Starts a process that tries grammars, given its limit of CPU seconds per grammar."""


class PassedGrammars(Protocol):
    """Stores the grammars that have passed their trial. Implementations are thread-safe."""

    def find(self, grammar: Grammar) -> Grammar | None:
        """Returns the stored grammar in the backend's format; None = the grammar is not stored."""

    def keep(self, grammar: Grammar, verdict: Verdict) -> Grammar:
        """Stores a grammar that has passed its trial, and returns it in the backend's format.
        Raises UnusableGrammar if the compiler rejects the grammar."""


class GuardedGrammars(Grammars):
    """Tries each grammar in another process before the server compiles it, and caches the results.
    This is necessary because a few characters can keep a compiler busy for hours, or crash its
    process.

    Args:
        passed: stores the grammars that have passed.
        lanes: the trials of each lane; a grammar must pass all of them.
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
        """Ends the trial processes."""
        self._lanes.close()


class _Lane:
    """A lane, which tries one grammar at a time with several compilers in turn. All methods except
    `kill` must be called on the lane's thread."""

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
        grammar exceeds this lane's time limit and `is_last` is False; RequestError if the grammar
        is unusable; BackendError if it cannot be tried now. `is_last` is whether this lane has the
        highest limit."""
        found = self._passed.find(grammar)  # another request may have had it tried
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
    """Returns the verdict of a grammar that has passed. Raises TrialTimeout if the grammar exceeded
    the time limit and `is_last` is False, so that a lane with a higher limit follows;
    UnusableGrammar in all other cases."""
    if verdict.is_slow and not is_last:
        raise TrialTimeout
    if verdict.fault:
        raise UnusableGrammar(grammar, verdict.fault, is_certain=verdict.is_certain)
    return verdict


class _CompiledGrammars:
    """Implements `PassedGrammars` with the cache of the paged engine's compiler."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler

    def find(self, grammar: Grammar) -> Grammar | None:
        compiled = self._compiler.cached(grammar)
        return None if compiled is None else replace(grammar, compiled=compiled)

    def keep(self, grammar: Grammar, verdict: Verdict) -> Grammar:
        compiled = self._compiler.compile(grammar, num_bytes=verdict.num_bytes)
        return replace(grammar, compiled=compiled)


def load_grammar_compiler(model_dir: Path, model: ModelInfo) -> GrammarCompiler | None:
    """Returns the compiler for the model's tokenizer.json; None, with a warning in the log, if the
    file is unusable."""
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
    """Returns the guard of the paged engine's compiler. `start` starts the trial processes; None =
    use `trial_starter`."""
    start = start or trial_starter(compiler)
    return GuardedGrammars(
        _CompiledGrammars(compiler), [[lane_trial(start, seconds)] for seconds in LANE_SECONDS]
    )


def lane_trial(start: StartTrial, seconds: float) -> Trial:
    """Returns the trial of a lane with this limit of CPU seconds."""
    timeout = max(_MIN_TIMEOUT, seconds * _PATIENCE)
    return Trial(lambda: start(seconds), timeout=timeout)


def trial_starter(compiler: GrammarCompiler) -> StartTrial:
    """Returns a function that starts processes with a compiler equal to this one."""
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
