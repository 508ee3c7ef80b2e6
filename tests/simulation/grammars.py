"""Grammars of simulated models, whose tokens are bytes. They are compiled in the process: trial
processes cannot be simulated."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import count
from typing import Final

import orjson

from fastovms.backend_stats import GrammarStats
from fastovms.backends.paged.backend import Grammars
from fastovms.grammar.compiler import GrammarCompiler
from fastovms.params import Grammar
from tests.fakes import EOS


def _tokenizer_json() -> str:
    """Returns a Hugging Face tokenizer.json of which each token is a byte."""
    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    further = count(256)
    texts = [chr(byte if byte in shown else next(further)) for byte in range(256)]
    bytes_only = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    bytes_only["trim_offsets"] = True
    flags = ("single_word", "lstrip", "rstrip", "normalized")
    end = {"id": EOS, "content": "<end>", "special": True, **dict.fromkeys(flags, False)}
    vocab = {text: byte for byte, text in enumerate(texts)}
    return orjson.dumps(
        {
            "version": "1.0",
            "added_tokens": [end],
            "pre_tokenizer": bytes_only,
            "decoder": bytes_only,
            "model": {"type": "BPE", "vocab": vocab, "merges": []},
        }
    ).decode()


COMPILER: Final = GrammarCompiler(_tokenizer_json(), vocab_size=EOS + 1, eos_token_ids=[EOS])


class SimGrammars(Grammars):
    """Stands for `GuardedGrammars`."""

    stats = GrammarStats()

    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler

    def start(self) -> None:
        pass

    async def compile(self, grammar: Grammar, client: str) -> Grammar:
        loop = asyncio.get_running_loop()
        compiled = await loop.run_in_executor(None, self._compiler.compile, grammar)
        return replace(grammar, compiled=compiled)

    def close(self) -> None:
        pass
