"""Reproduces what ends a process in llguidance, each in a child of its own.

    python bench/upstream/llguidance_overflows.py

It needs llguidance alone.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any

import llguidance
from llguidance import LLMatcher, LLTokenizer

STACK = 8 * 2**20
"""Bytes, the usual size of a main thread's stack."""


def schema(value: Any) -> Callable[[], str]:
    return lambda: LLMatcher.grammar_from_json_schema(json.dumps(value))


def lark(source: str) -> Callable[[], str]:
    return lambda: LLMatcher.grammar_from_lark(source)


def rules(form: str, length: int) -> str:
    first, last = form[0] + "0", f"{form[0]}{length}"
    chain = [form.format(i, i + 1) for i in range(length)]
    return "\n".join([f"start: {first}", *chain, f'{last}: "a"'])


def references(length: int) -> dict[str, Any]:
    parts: dict[str, Any] = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": {**parts, f"d{length}": {"type": "integer"}}}


CASES = {
    "const: -2**63": schema({"const": -(2**63)}),
    "const: -2**63 + 512": schema({"const": -(2**63) + 512}),
    "const: -2**63 + 513": schema({"const": -(2**63) + 513}),
    "minimum and maximum within 10 of -2**63": schema(
        {"type": "integer", "minimum": -(2**63) + 8, "maximum": -(2**63) + 18}
    ),
    "minimum: -2**63 (refused, though it is int64's)": schema(
        {"type": "integer", "minimum": -(2**63)}
    ),
    "$ref over 1,000 others": schema(references(1000)),
    "$ref over 10,000 others": schema(references(10_000)),
    "10,000 rules, each of the next": lark(rules("r{0}: r{1}", 10_000)),
    "10,000 terminals, each of the next": lark(rules("T{0}: T{1}", 10_000)),
    '1,000 rules, each "a" NEXT "b"': lark(rules('r{0}: "a" r{1} "b"', 1000)),
    '10,000 rules, each "a" NEXT "b"': lark(rules('r{0}: "a" r{1} "b"', 10_000)),
}


def outcome(make: Callable[[], str]) -> str:
    """What becomes of a process that compiles it."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.write(writer, _compile(make).encode())
        os._exit(0)
    os.close(writer)
    text = os.read(reader, 200).decode()
    os.close(reader)
    _, status = os.waitpid(pid, 0)
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else text


def _compile(make: Callable[[], str]) -> str:
    tokenizer = LLTokenizer("byte")
    matcher = LLMatcher(tokenizer, make(), log_level=0)
    if not matcher.is_error():
        matcher.compute_bitmask()
    return matcher.get_error().splitlines()[0][:100] if matcher.is_error() else "compiles"


def main() -> None:
    resource.setrlimit(resource.RLIMIT_STACK, (STACK, resource.RLIM_INFINITY))
    print(f"llguidance {llguidance.__version__}, Python {sys.version.split()[0]}")
    for name, make in CASES.items():
        print(f"{name}: {outcome(make)}")


if __name__ == "__main__":
    main()
