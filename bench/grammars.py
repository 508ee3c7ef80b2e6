"""What it costs that a client's grammar is tried in another process first, and how long an ordinary
one waits behind hostile ones.

    python -m bench.grammars
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from contextlib import suppress
from itertools import count
from typing import Final

from bench.common.report import machine, table
from fastovms.errors import BackendError, Overloaded, RequestError
from fastovms.grammar.compiler import GrammarCompiler
from fastovms.params import Grammar, GrammarKind
from fastovms.parts.grammars.trials import GuardedGrammars, guard_compiler
from fastovms.server_config import DEMO_MODEL

_TOKENIZER: Final = DEMO_MODEL / "tokenizer.json"
_NUM_RUNS: Final = 100
_NUM_COLD: Final = 5
_NUM_HOSTILE: Final = 200
_PRIMES: Final = (99991, 99989, 99971, 99961, 99929, 99923)


def plain(number: int) -> Grammar:
    """A schema such as most people write, unlike that of any other number."""
    properties = {
        f"name{number}": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["a", "b", "c"]},
        "tags": {"type": "array", "items": {"type": "string"}},
    }
    schema = {"type": "object", "properties": properties, "required": ["age", "kind"]}
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))


def hostile(number: int) -> Grammar:
    """A schema that would take hours."""
    choices = [{"type": "integer", "multipleOf": prime * (number + 1)} for prime in _PRIMES]
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps({"anyOf": choices}))


def new_compiler() -> GrammarCompiler:
    return GrammarCompiler(
        _TOKENIZER.read_text(encoding="utf-8"), vocab_size=None, eos_token_ids=[0]
    )


async def seconds(guarded: GuardedGrammars, grammar: Grammar, client: str = "") -> float:
    """How long a client waits, which asks again where it is told to."""
    start = time.perf_counter()
    while True:
        try:
            await guarded.compile(grammar, client)
        except Overloaded as error:
            await asyncio.sleep(error.retry_after)
        else:
            return time.perf_counter() - start


async def measure_costs() -> list[tuple[str, float, float]]:
    """Medians in milliseconds: name, value, and that over a direct compilation."""
    numbers = count()
    cold = []
    for _ in range(_NUM_COLD):
        guarded = guard_compiler(new_compiler())
        cold.append(await seconds(guarded, plain(next(numbers))))
        guarded.close()
    compiler, guarded = new_compiler(), guard_compiler(new_compiler())
    await guarded.compile(plain(next(numbers)), "")
    direct, warm, cached = [], [], []
    for _ in range(_NUM_RUNS):
        start = time.perf_counter()
        compiler.compile(plain(next(numbers)))
        direct.append(time.perf_counter() - start)
        grammar = plain(next(numbers))
        warm.append(await seconds(guarded, grammar))
        cached.append(await seconds(guarded, grammar))
    guarded.close()
    base = statistics.median(direct)
    values = (("direct", direct), ("warm", warm), ("cached", cached), ("process not up", cold))
    return [
        (name, 1e3 * (found := statistics.median(some)), 1e3 * (found - base))
        for name, some in values
    ]


async def measure_waiting(client: str) -> tuple[float, float]:
    """Median and longest seconds that ordinary grammars take while there are hostile ones of the
    client "hostile"."""
    guarded = guard_compiler(new_compiler())
    await guarded.compile(plain(-1), "")

    async def attack(number: int) -> None:
        with suppress(BackendError, RequestError):
            await guarded.compile(hostile(number), "hostile")

    attackers = [asyncio.create_task(attack(number)) for number in range(_NUM_HOSTILE)]
    await asyncio.sleep(0)
    waited = [await seconds(guarded, plain(number), client) for number in range(10)]
    guarded.close()
    await asyncio.gather(*attackers)
    return statistics.median(waited), max(waited)


async def main() -> None:
    print(machine())
    costs = await measure_costs()
    print(table(("a plain schema", "median ms", "more than directly"), costs))
    rows = [
        (whose, *await measure_waiting(client))
        for whose, client in (("another client's", "ordinary"), ("the same client's", "hostile"))
    ]
    print(f"\nbehind {_NUM_HOSTILE} hostile schemas at once:\n")
    print(table(("an ordinary schema", "median s", "longest s"), rows))


if __name__ == "__main__":
    asyncio.run(main())
