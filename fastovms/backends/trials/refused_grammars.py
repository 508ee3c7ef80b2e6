"""Remembers why grammars were refused, and tells grammars from one another."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Final

from fastovms.grammar.grammar_faults import UnusableGrammar
from fastovms.params import Grammar

_MAX_REFUSED: Final = 256
_MAX_REASON: Final = 1000


class RefusedGrammars:
    """Remembers why grammars were refused: a tool's schema comes again with every request, whether
    it can be used or not, and to find that out may take seconds. What another trial may see
    otherwise is not remembered. It is thread-safe."""

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
        """Remembers the grammar if it is refused for certain within the `with` statement."""
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
    """Returns 32 bytes that tell a grammar from others."""
    parts = (grammar.kind.name, grammar.source, repr(grammar.tree))
    return hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).digest()
