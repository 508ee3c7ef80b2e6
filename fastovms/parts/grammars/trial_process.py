"""The process that tries grammars.

The process loads a compiler and forks a worker, which tries one grammar after another. A client's
data reach native code only in a worker. If a worker dies, another is forked within milliseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import resource
from multiprocessing.connection import Connection
from typing import Any, Final

from fastovms.backends.processes import (
    TRIAL_STACK,
    discard_stderr,
    limit_growth,
    limit_time,
    max_resident,
    set_soft_limit,
)
from fastovms.grammar.compiler import GrammarCompiler
from fastovms.grammar.state import UnfinishableGrammar, UnusableGrammar
from fastovms.params import Grammar, GrammarKind
from fastovms.parts.grammars.trials import TOO_MUCH, SmallVocabulary, Verdict, verdict_on_death

_MAX_MEMORY: Final = 512 * 2**20
"""The maximum bytes of address space that a worker may use in addition to those at its start."""

_MAX_HELD: Final = 48 * 2**20
"""The maximum bytes of a compiled grammar."""

_MAX_GROWTH: Final = 64 * 2**20
"""The number of bytes of growth after which a worker is replaced."""

_DONE: Final = 0
_RENEW: Final = 3
"""The exit status of a worker that asks to be replaced."""


class _MallocInfo(ctypes.Structure):
    """The struct that mallinfo2(3) returns."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks",
                     "uordblks", "fordblks", "keepcost")
    ]  # fmt: skip


class _Heap:
    """Measures the C heap of the process."""

    def __init__(self) -> None:
        self._ask = getattr(ctypes.CDLL(None), "mallinfo2", None)  # glibc has it, since 2.33
        if self._ask is not None:
            self._ask.restype = _MallocInfo

    @property
    def num_bytes(self) -> int:
        """The allocated bytes; 0 if glibc is older than 2.33."""
        if self._ask is None:
            return 0
        info = self._ask()
        return int(info.uordblks + info.hblkhd)


class _Worker:
    """Tries the grammars that the server sends, until the connection closes.

    Args:
        begun: memory shared with the parent: the number of the grammar that is being tried, or 0.
        seconds: the limit of CPU seconds for a grammar.
    """

    def __init__(
        self,
        connection: Connection[Any, Any],
        compiler: GrammarCompiler,
        begun: mmap.mmap,
        seconds: float,
    ) -> None:
        self._connection = connection
        self._compiler = compiler
        self._begun = begun
        self._seconds = seconds
        self._heap = _Heap()

    def serve(self) -> int:
        """Tries grammars, and returns the exit status."""
        most = max_resident() + _MAX_GROWTH
        with contextlib.suppress(EOFError, ConnectionError):
            while max_resident() < most:
                self._connection.send(None)
                number, grammar = self._connection.recv()
                self._begun[:] = number.to_bytes(8)
                limit_time(self._seconds)
                verdict = self._try(grammar)
                limit_time(0)
                self._connection.send((number, verdict))
                self._begun[:] = bytes(8)
            return _RENEW
        return _DONE

    def _try(self, grammar: Grammar) -> Verdict:
        before = self._heap.num_bytes
        try:
            compiled = self._compiler.compile(grammar)
        except UnfinishableGrammar:  # tokens of the served model may complete the grammar
            return Verdict()
        except UnusableGrammar as error:
            return Verdict(error.reason)
        except BaseException as error:  # a panic of Rust is a BaseException
            return Verdict(f"{TOO_MUCH} ({type(error).__name__})")
        num_bytes = max(0, self._heap.num_bytes - before)
        del compiled
        if num_bytes > _MAX_HELD:
            return Verdict(
                f"it needs {num_bytes // 2**20} MiB; at most {_MAX_HELD // 2**20} may be"
            )
        return Verdict(num_bytes=num_bytes)


def fork_workers(
    connection: Connection[Any, Any], compiler: GrammarCompiler, seconds: float
) -> None:
    """Forks workers, one at a time, until the connection closes."""
    begun = mmap.mmap(-1, 8)
    while True:
        begun[:] = bytes(8)
        pid = os.fork()
        if pid == 0:
            discard_stderr()  # messages of panics may contain a client's grammar
            os._exit(_Worker(connection, compiler, begun, seconds).serve())
        _, status = os.waitpid(pid, 0)
        if status == _DONE:
            return
        number = int.from_bytes(begun)
        if number:
            cause = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
            connection.send((number, verdict_on_death(cause)))


def serve(connection: Connection[Any, Any], seconds: str, niceness: str) -> None:
    """Receives a `SmallVocabulary`, then tries grammars with a compiler for that vocabulary."""
    os.nice(int(niceness))
    vocabulary: SmallVocabulary = connection.recv()
    compiler = GrammarCompiler(
        vocabulary.tokenizer_json(),
        vocab_size=vocabulary.vocab_size,
        eos_token_ids=vocabulary.eos_token_ids,
        max_cached_bytes=0,
    )
    # Compiled before the fork, so that workers share the memory.
    compiler.compile(Grammar(GrammarKind.JSON_OBJECT, ""))
    limit_growth(_MAX_MEMORY)
    set_soft_limit(resource.RLIMIT_STACK, TRIAL_STACK)
    fork_workers(connection, compiler, float(seconds))
