"""Tests of `fastovms/parts/grammars/trials.py`."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from multiprocessing.connection import Pipe

import pytest

from fastovms.errors import BackendUnavailable, InvalidField, Overloaded
from fastovms.grammar.compiler import GrammarCompiler
from fastovms.grammar.state import CompiledGrammar, UnusableGrammar
from fastovms.grammar_tree import Answer, Json, Literal, Separated, Tag, in_order
from fastovms.params import Grammar, GrammarKind
from fastovms.parts.grammars.trials import (
    GuardedGrammars,
    RefusedGrammars,
    SmallVocabulary,
    Trial,
    TrialLanes,
    TrialTimeout,
    Verdict,
    digest_of,
    guard_compiler,
)
from tests.backends.listener import until
from tests.paths import BYTE_LEVEL_TOKENIZER

# Refusals are cached within limits.


def test_refusals_are_remembered_within_bounds() -> None:
    refused = RefusedGrammars()

    for number in range(300):
        grammar = Grammar(GrammarKind.REGEX, str(number))
        refused.check(grammar)
        with suppress(UnusableGrammar), refused.remembering(grammar):
            raise UnusableGrammar(grammar, "found now")
    with pytest.raises(UnusableGrammar, match="found now") as error:
        refused.check(Grammar(GrammarKind.REGEX, "299", "p"))
    assert error.value.param == "p"
    refused.check(Grammar(GrammarKind.REGEX, "0"))  # evicted from the cache


def test_digests_of_different_grammars_differ() -> None:
    grammars = [
        Grammar(GrammarKind.REGEX, "a"),
        Grammar(GrammarKind.CHOICE, "a"),
        Grammar(GrammarKind.REGEX, "b"),
        Grammar(GrammarKind.REGEX, "a", tree=Literal("a")),
        Grammar(GrammarKind.REGEX, "\ud800"),
    ]
    assert len({digest_of(grammar) for grammar in grammars}) == len(grammars)
    assert digest_of(grammars[0]) == digest_of(Grammar(GrammarKind.REGEX, "a", "another field"))


# Trials know every token id and every special token of the model.


SPECIAL = {"</s>": 2, "<call>": 700, "<deep>": 99_999, "[INST]": 5}


@pytest.mark.parametrize("vocab_size", [100_000, 300])
def test_grammars_are_compiled_as_for_the_model(vocab_size: int) -> None:
    special = {text: token_id for text, token_id in SPECIAL.items() if token_id < vocab_size}
    small = SmallVocabulary(vocab_size, (2,), special)
    compiler = GrammarCompiler(
        small.tokenizer_json(), vocab_size=small.vocab_size, eos_token_ids=small.eos_token_ids
    )
    assert compiler.vocab_size == vocab_size
    assert compiler.special_tokens == special
    last = vocab_size - 1
    for source in (f"start: <[{last}]>", 'start: "grün" <[5]>', f"start: <[10-{last}]> /[a-z]+/"):
        compiler.compile(Grammar(GrammarKind.GRAMMAR, source))
    compiler.compile(Grammar(GrammarKind.CALLS, "", tree=in_order(Tag("<call>"), "x")))
    with pytest.raises(UnusableGrammar, match="too large"):
        compiler.compile(Grammar(GrammarKind.GRAMMAR, f"start: <[{vocab_size}]>"))


# A process that tries grammars may refuse one, crash, or never answer.


class FakeProcess:
    """Returns the result of `answer`; an exception ends the process, and its message is the result
    of `wait`."""

    def __init__(self, answer: Callable[[str], Verdict], *, is_ready: bool = True) -> None:
        self.connection, self._theirs = Pipe()
        self._fate = ""
        self._answer = answer
        self._is_ready = is_ready
        self.killed = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with suppress(EOFError, OSError), self._theirs:
            while self._is_ready:
                self._theirs.send(None)
                number, grammar = self._theirs.recv()
                self._theirs.send((number - 1, Verdict("an answer on which nobody waits")))
                try:
                    answer = self._answer(grammar.source)
                except ArithmeticError as error:
                    self._fate = str(error)
                    return
                self._theirs.send((number, answer))

    def wait(self) -> str:
        return self._fate

    def kill(self) -> None:
        self.killed.set()

    def end(self) -> None:
        self.kill()
        self.connection.close()


class Starter:
    def __init__(self, answer: Callable[[str], Verdict], *, is_ready: bool = True) -> None:
        self._answer = answer
        self._is_ready = is_ready
        self.started: list[FakeProcess] = []

    def __call__(self) -> FakeProcess:
        self.started.append(FakeProcess(self._answer, is_ready=self._is_ready))
        return self.started[-1]


def ask(trial: Trial, source: str) -> Verdict:
    return trial.ask(Grammar(GrammarKind.REGEX, source))


@pytest.fixture
def hung() -> Iterator[threading.Event]:
    released = threading.Event()
    yield released
    released.set()


def test_one_process_answers_one_grammar_after_another() -> None:
    start = Starter(lambda source: Verdict(num_bytes=len(source)))
    trial = Trial(start, timeout=60)
    trial.warm_up()
    assert len(start.started) == 1
    for source in ("a", "bb", "ccc"):
        assert ask(trial, source) == Verdict(num_bytes=len(source))
    assert len(start.started) == 1
    trial.close()
    assert start.started[0].killed.is_set()


def ending(exit_description: str) -> Callable[[str], Verdict]:
    """Ends the process for bad grammars."""

    def answer(source: str) -> Verdict:
        if source == "bad":
            raise ArithmeticError(exit_description)
        return Verdict()

    return answer


MUCH, SLOW = "it is too much for the compiler", "it takes too long to compile"


@pytest.mark.parametrize(
    ("exit_description", "verdict"),
    [
        ("SIGSEGV", Verdict(MUCH, has_died=True)),
        ("SIGABRT", Verdict(MUCH, has_died=True)),
        ("SIGKILL", Verdict(MUCH, has_died=True, is_certain=False)),  # perhaps by the OOM killer
        ("SIGPROF", Verdict(SLOW, is_slow=True)),
        (
            "SIGALRM",
            Verdict(SLOW, is_slow=True, is_certain=False),
        ),  # wall time: the machine may be busy
    ],
)
def test_a_process_that_dies_is_replaced_at_once(exit_description: str, verdict: Verdict) -> None:
    start = Starter(ending(f"was ended by {exit_description}"))
    trial = Trial(start, timeout=60)
    assert ask(trial, "bad") == verdict
    assert len(start.started) == 2
    assert ask(trial, "good") == Verdict()
    assert len(start.started) == 2
    assert trial.num_deaths == verdict.has_died
    trial.close()


def test_a_process_that_hangs_is_replaced_at_once(hung: threading.Event) -> None:
    start = Starter(lambda source: Verdict(str(hung.wait()) if source == "bad" else ""))
    trial = Trial(start, timeout=0.5)
    assert ask(trial, "bad") == Verdict(SLOW, is_slow=True, is_certain=False)
    assert start.started[0].killed.is_set()
    assert ask(trial, "good") == Verdict()
    assert len(start.started) == 2
    trial.close()


def test_a_process_that_does_not_come_up_is_no_fault_of_the_grammar() -> None:
    start = Starter(lambda source: Verdict(), is_ready=False)
    trial = Trial(start, timeout=60)
    for _ in range(2):
        with pytest.raises(BackendUnavailable, match="cannot be compiled now"):
            ask(trial, "a")
    assert len(start.started) == 2


def test_killed_trial_starts_no_other_process(hung: threading.Event) -> None:
    start = Starter(lambda source: Verdict())
    trial = Trial(start, timeout=60)
    trial.warm_up()
    trial.kill()
    trial.close()
    with pytest.raises(BackendUnavailable, match="shutting down"):
        ask(trial, "a")
    assert len(start.started) == 1


# Slow grammars wait only behind other slow ones.


def grammar(source: str) -> Grammar:
    return Grammar(GrammarKind.REGEX, source)


class FakeLane:
    """Finishes short grammars at once. Grammars that begin with `slow` need another lane and wait
    in the last one until the test continues; `bad` is refused, and `panic` raises a BaseException.
    The lane starts when there are no `faults` left."""

    def __init__(self) -> None:
        self.num_deaths = 0
        self.starts = 0
        self.seen: list[str] = []
        self.may_go_on = threading.Event()
        self.is_warm = threading.Event()
        self.is_closed = threading.Event()
        self.faults: list[Exception] = []

    @property
    def is_starting(self) -> bool:
        """Returns True as often as `starts` says; the last time, waiting grammars may continue."""
        self.starts -= 1
        if self.starts == 0:
            self.may_go_on.set()
        return self.starts >= 0

    def warm_up(self) -> None:
        if self.faults:
            raise self.faults.pop()
        self.is_warm.set()

    def attempt(self, grammar: Grammar, *, is_last: bool) -> str:
        self.seen.append(grammar.source)
        if grammar.source.startswith("slow"):
            if not is_last:
                raise TrialTimeout
            self.may_go_on.wait()
        if grammar.source == "bad":
            raise UnusableGrammar(grammar, "it is bad")
        if grammar.source == "panic":
            raise BaseException("panicked")
        return grammar.source.upper()

    def kill(self) -> None:
        self.may_go_on.set()

    def close(self) -> None:
        self.is_closed.set()


@contextmanager
def two_lanes(**options: float) -> Iterator[tuple[TrialLanes, FakeLane, FakeLane]]:
    quick, slow = FakeLane(), FakeLane()
    lanes = TrialLanes([quick, slow], **options)
    try:
        yield lanes, quick, slow
    finally:
        lanes.close()
        if quick.is_warm.is_set():
            assert quick.is_closed.wait(60)


@asynccontextmanager
async def blocked(
    lanes: TrialLanes, slow: FakeLane, num: int, client: str = "hostile"
) -> AsyncIterator[list[asyncio.Task[str]]]:
    """Returns slow grammars of one client, one of which is in the last lane."""
    tasks = [asyncio.create_task(lanes.run(grammar(f"slow{i}"), client)) for i in range(num)]
    await until(lambda: bool(slow.seen))
    try:
        yield tasks
    finally:
        slow.may_go_on.set()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_the_first_lane_is_warm_from_the_start_and_the_others_when_they_are_needed() -> None:
    with two_lanes() as (lanes, quick, slow):
        lanes.start()
        assert await asyncio.to_thread(quick.is_warm.wait, 10)
        assert await lanes.run(grammar("a"), "x") == "A"
        assert not slow.is_warm.is_set()


@pytest.mark.parametrize("client", ["hostile", "another"])
async def test_an_ordinary_grammar_does_not_wait_for_slow_ones(client: str) -> None:
    with two_lanes() as (lanes, _, slow):
        async with blocked(lanes, slow, 5) as tasks:
            assert await lanes.run(grammar("a"), client) == "A"
            assert not any(task.done() for task in tasks)


async def test_slow_ones_of_another_client_come_after_one_at_most() -> None:
    with two_lanes() as (lanes, quick, slow):
        async with blocked(lanes, slow, 5):
            other = asyncio.create_task(lanes.run(grammar("slow!"), "another"))
            await until(lambda: "slow!" in quick.seen)
            await lanes.run(grammar("a"), "another")  # it follows in the first lane
            slow.may_go_on.set()
            assert await other == "SLOW!"
        assert slow.seen.index("slow!") <= 2


async def test_client_with_too_many_trials_gets_an_overload() -> None:
    with two_lanes() as (lanes, _, slow):
        async with blocked(lanes, slow, 30) as tasks:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=60)
            errors = [task.exception() for task in done]
            assert errors
            assert all(isinstance(error, Overloaded) for error in errors)
            assert all(str(error).startswith("response_format: ") for error in errors)
            assert lanes.stats.num_overloads >= len(errors)


async def test_waiting_ends_after_a_time_without_that_of_starts() -> None:
    with (
        two_lanes(max_seconds=0.05) as (lanes, _, _),
        pytest.raises(Overloaded, match=r"format: .*0\.05 s"),
    ):
        await lanes.run(grammar("slow"), "x")
    with two_lanes(max_seconds=0.05) as (lanes, _, slow):
        slow.starts = 4
        assert await lanes.run(grammar("slow"), "x") == "SLOW"


async def test_a_refusal_and_a_panic_concern_only_their_grammar() -> None:
    with two_lanes() as (lanes, _, _):
        with pytest.raises(UnusableGrammar, match="it is bad"):
            await lanes.run(grammar("bad"), "x")
        with pytest.raises(UnusableGrammar, match="too much for the compiler") as error:
            await lanes.run(grammar("panic"), "x")
        assert error.value.param == "response_format"
        assert await lanes.run(grammar("a"), "x") == "A"


async def test_cancelled_grammar_is_not_tried() -> None:
    with two_lanes() as (lanes, quick, slow):
        async with blocked(lanes, slow, 2) as tasks:
            await until(lambda: "slow1" in quick.seen and lanes.stats.num_waiting == 1)
            tasks[1].cancel()
            await asyncio.wait([tasks[1]])
            assert lanes.stats.num_waiting == 0
        assert quick.seen == ["slow0", "slow1"]
        assert slow.seen == ["slow0"]


async def test_a_lane_that_fails_is_started_again() -> None:
    with two_lanes() as (lanes, quick, _):
        quick.faults = [OSError("no more processes"), ZeroDivisionError()]
        for _ in range(2):
            with pytest.raises(BackendUnavailable, match="cannot be compiled now"):
                await lanes.run(grammar("a"), "x")
        assert await lanes.run(grammar("a"), "x") == "A"


async def test_closing_ends_what_waits() -> None:
    with two_lanes() as (lanes, _, slow):
        async with blocked(lanes, slow, 3) as tasks:
            await until(lambda: lanes.stats.num_waiting == 2)
            lanes.close()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        assert results[0] == "SLOW0"
        assert all(isinstance(result, BackendUnavailable) for result in results[1:])
        with pytest.raises(BackendUnavailable, match="shutting down"):
            await lanes.run(grammar("a"), "x")


# Grammars are tried in another process, which may crash or be too slow.


TOKENIZER_JSON = BYTE_LEVEL_TOKENIZER.read_text()


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(TOKENIZER_JSON, vocab_size=None, eos_token_ids=[0])


@pytest.fixture
async def guarded(compiler: GrammarCompiler) -> AsyncIterator[GuardedGrammars]:
    grammars = guard_compiler(compiler)
    grammars.start()
    yield grammars
    grammars.close()


def schema(value: object) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value))


def hours(number: int) -> Grammar:
    """Returns a grammar that would take hours to compile."""
    primes = [99991, 99989, 99971, 99961, 99929, 99923]
    return schema({"anyOf": [{"type": "integer", "multipleOf": p * number} for p in primes]})


async def compile_in_the_end(
    guarded: GuardedGrammars, grammar: Grammar, client: str = ""
) -> Grammar:
    """Retries as a client does while the machine is too busy to answer in time."""
    async with asyncio.timeout(600):
        while True:
            with suppress(Overloaded):
                return await guarded.compile(grammar, client)
            await asyncio.sleep(0.1)


DEEP = Grammar(GrammarKind.CALLS, "", "tools", Separated(((Literal("a"), True),) * 1000, ","))
"""Overflows the stack of a compiler: rules lead from each argument to the next."""


LARGE = Json.of({"const": -(2**63)})


@pytest.mark.parametrize(
    "grammar",
    [
        schema({"const": -(2**63)}),
        schema({"type": "integer", "minimum": -(2**63), "maximum": 5 - 2**63}),
        Grammar(GrammarKind.GRAMMAR, f'start: %json {{"enum": [{-(2**63)}]}}'),
        Grammar(GrammarKind.CALLS, "", tree=in_order("a", LARGE)),
        Grammar(GrammarKind.REGEX, "a", tree=in_order(Answer(), LARGE)),
    ],
)
async def test_numbers_that_end_the_compiler_are_refused_by_name(
    guarded: GuardedGrammars, grammar: Grammar
) -> None:
    with pytest.raises(InvalidField, match=r"(const|enum|maximum) must be") as error:
        await guarded.compile(grammar, "")
    assert error.value.param == "response_format"
    assert guarded.stats.num_deaths == 0


async def test_grammar_that_crashes_the_compiler_is_refused(guarded: GuardedGrammars) -> None:
    with pytest.raises(InvalidField, match="it is too much for the compiler") as error:
        await guarded.compile(DEEP, "")
    assert error.value.param == "tools"
    assert guarded.stats.num_deaths == 1
    await guarded.compile(Grammar(GrammarKind.REGEX, "a{2,5}"), "")


PATTERNS = {f"^a{{{i}}}b*$": {"type": "integer"} for i in range(900)}


@pytest.mark.nightly(but=("grammar0",))
@pytest.mark.parametrize("grammar", [hours(1), schema({"patternProperties": PATTERNS})])
async def test_grammar_that_compiles_too_long_is_refused(
    guarded: GuardedGrammars, grammar: Grammar
) -> None:
    started = time.process_time()
    with pytest.raises(InvalidField, match="it takes too long to compile") as error:
        await compile_in_the_end(guarded, grammar)
    assert error.value.param == "response_format"
    assert time.process_time() - started < 1  # of this process
    num_trials = guarded.stats.num_trials
    for _ in range(2):  # and no request waits for it again
        with pytest.raises(InvalidField, match="it takes too long to compile"):
            await guarded.compile(grammar, "")
    assert guarded.stats.num_trials == num_trials


async def test_accepted_grammar_is_compiled_and_cached(guarded: GuardedGrammars) -> None:
    grammar = schema({"type": "object", "properties": {"a": {}}, "additionalProperties": True})
    first, second = [await guarded.compile(grammar, "") for _ in range(2)]
    assert isinstance(first.compiled, CompiledGrammar)
    assert first.compiled is second.compiled
    assert first.compiled.num_bytes > 100_000, "it was measured"
    assert guarded.stats.num_trials == 1


async def test_a_death_by_chance_is_not_remembered(compiler: GrammarCompiler) -> None:
    """For example when the system kills the process because memory is short."""
    deaths = [Verdict("it died", has_died=True, is_certain=False)]
    grammars = guard_compiler(
        compiler, start=lambda _: FakeProcess(lambda _: deaths.pop() if deaths else Verdict())
    )
    grammar = Grammar(GrammarKind.REGEX, "by[ ]chance")
    with pytest.raises(InvalidField, match="it died"):
        await grammars.compile(grammar, "")
    assert (await grammars.compile(grammar, "")).compiled is not None
    grammars.close()
