"""The process that tries grammars: `python -m fastovms.backends.grammar_trial DESCRIPTOR`.

How long one takes hardly depends on the vocabulary, so the small one of the package serves. What
is wrong with one is not told: the server's own compiler will say it, in as much time.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from fastovms.backends.process import connect_to_parent
from fastovms.engine.grammar import GrammarCompiler
from fastovms.errors import InvalidField
from fastovms.params import Grammar

_TOKENIZER: Final = Path(__file__).parents[1] / "demo_model" / "tokenizer.json"
_EOS: Final = 0
_MAX_MEMORY: Final = 4 * 2**30
_MAX_SECONDS: Final = 3
"""Of a processor, for one grammar. A busy machine is no fault of a grammar's."""


def serve(connection: Connection[Any, Any], compiler: GrammarCompiler) -> None:
    """See `Trial`."""
    with contextlib.suppress(EOFError, ConnectionError):
        connection.send(None)
        while True:
            grammar: Grammar = connection.recv()
            seconds = math.ceil(time.process_time()) + _MAX_SECONDS
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))
            with contextlib.suppress(InvalidField):
                compiler.compile(grammar)
            connection.send("")


def main() -> None:
    connection = connect_to_parent(sys.argv)
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))
    source = _TOKENIZER.read_text(encoding="utf-8")
    serve(connection, GrammarCompiler(source, vocab_size=None, eos_token_ids=[_EOS]))
    os._exit(0)


if __name__ == "__main__":
    main()
