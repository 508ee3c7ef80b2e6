"""Grammars are tried in another process, which may die of them or be too slow."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from fastovms.backends.processes.process import Peer
from fastovms.backends.trials.guarded_grammars import (
    GuardedGrammars,
    guard_compiler,
)
from fastovms.backends.trials.trial import Verdict
from fastovms.errors import BackendUnavailable, InvalidField, Overloaded
from fastovms.grammar.grammar_cache import CompiledGrammar
from fastovms.grammar.grammar_compiler import GrammarCompiler
from fastovms.grammar_tree import Answer, Json, Literal, Separated, in_order
from fastovms.params import Grammar, GrammarKind
from tests.backends.trials.test_trial import FakeProcess
from tests.paths import BYTE_LEVEL_TOKENIZER

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
    """One that would take hours."""
    primes = [99991, 99989, 99971, 99961, 99929, 99923]
    return schema({"anyOf": [{"type": "integer", "multipleOf": p * number} for p in primes]})


async def compile_in_the_end(
    guarded: GuardedGrammars, grammar: Grammar, client: str = ""
) -> Grammar:
    """Asks again where the machine is too busy to tell in time, as a client does."""
    async with asyncio.timeout(60):
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


async def test_what_ends_the_compiler_ends_only_its_trial(guarded: GuardedGrammars) -> None:
    with pytest.raises(InvalidField, match="it is too much for the compiler") as error:
        await guarded.compile(DEEP, "")
    assert error.value.param == "tools"
    assert guarded.stats.num_deaths == 1
    await guarded.compile(Grammar(GrammarKind.REGEX, "a{2,5}"), "")


PATTERNS = {f"^a{{{i}}}b*$": {"type": "integer"} for i in range(900)}


@pytest.mark.parametrize("grammar", [hours(1), schema({"patternProperties": PATTERNS})])
async def test_what_takes_for_ever_is_refused(guarded: GuardedGrammars, grammar: Grammar) -> None:
    started = time.process_time()
    with pytest.raises(InvalidField, match="it takes too long to compile") as error:
        await compile_in_the_end(guarded, grammar)
    assert error.value.param == "response_format"
    assert time.process_time() - started < 1  # of this process
    num_trials = guarded.stats.num_trials
    for _ in range(2):  # and nobody waits for it again
        with pytest.raises(InvalidField, match="it takes too long to compile"):
            await guarded.compile(grammar, "")
    assert guarded.stats.num_trials == num_trials


async def test_an_ordinary_grammar_does_not_wait_for_hostile_ones(guarded: GuardedGrammars) -> None:
    hostile = [asyncio.create_task(guarded.compile(hours(2 * i), "hostile")) for i in range(1, 7)]
    await asyncio.sleep(0)
    ordinary = asyncio.create_task(
        compile_in_the_end(guarded, Grammar(GrammarKind.REGEX, "a{2,7}"), "another")
    )
    done, _ = await asyncio.wait([ordinary, *hostile], return_when=asyncio.FIRST_COMPLETED)
    assert ordinary in done
    for task in hostile:
        task.cancel()
    await asyncio.gather(ordinary, *hostile, return_exceptions=True)


async def test_what_has_passed_is_compiled_and_kept(guarded: GuardedGrammars) -> None:
    grammar = schema({"type": "object", "properties": {"a": {}}, "additionalProperties": True})
    first, second = [await guarded.compile(grammar, "") for _ in range(2)]
    assert isinstance(first.compiled, CompiledGrammar)
    assert first.compiled is second.compiled
    assert first.compiled.num_bytes > 100_000, "it was measured"
    assert guarded.stats.num_trials == 1


async def test_what_is_wrong_is_told(guarded: GuardedGrammars) -> None:
    with pytest.raises(InvalidField, match="invalid regex"):
        await guarded.compile(Grammar(GrammarKind.REGEX, "[a"), "")


async def test_a_process_that_cannot_be_started(compiler: GrammarCompiler) -> None:
    def start(_: float) -> Peer:
        raise BlockingIOError("no more processes")

    grammars = guard_compiler(compiler, start=start)
    with pytest.raises(BackendUnavailable, match="grammars cannot be compiled now"):
        await grammars.compile(Grammar(GrammarKind.REGEX, "xyz"), "")
    grammars.close()


async def test_a_death_by_chance_is_not_remembered(compiler: GrammarCompiler) -> None:
    """As that of a process which the system kills because memory is short."""
    deaths = [Verdict("it died", has_died=True, is_certain=False)]
    grammars = guard_compiler(
        compiler, start=lambda _: FakeProcess(lambda _: deaths.pop() if deaths else Verdict())
    )
    grammar = Grammar(GrammarKind.REGEX, "by[ ]chance")
    with pytest.raises(InvalidField, match="it died"):
        await grammars.compile(grammar, "")
    assert (await grammars.compile(grammar, "")).compiled is not None
    grammars.close()
