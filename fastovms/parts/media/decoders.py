"""Pools of processes that decode files. The decoders are native code that reads untrusted bytes: a
crash loses only one file, and memory returns to the operating system."""

from __future__ import annotations

import os
import resource
import warnings
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

from fastovms.backends.processes import NICENESS, ChildProcess, ProcessPool, set_soft_limit
from fastovms.errors import InvalidField

TIMEOUT: Final = 60.0
"""Seconds that one answer of a process may take."""

Result = TypeVar("Result")


class Refused(NamedTuple):
    """Reports that the file is invalid."""

    message: str


class DecoderPool(ProcessPool):
    """A pool of processes that decode one file each at a time.

    Args:
        what: a file of this kind, for messages, such as "image".
        timeout: seconds to wait for an answer of a process.
    """

    def __init__(
        self, what: str, start: Callable[[], ChildProcess], *, max_processes: int, timeout: float
    ) -> None:
        super().__init__((what, "decoded"), start, max_processes=max_processes, is_ready=True)
        self._timeout = timeout

    def run(self, name: str, ask: Callable[[ChildProcess], Result]) -> Result:
        """Calls `ask` with an idle process and returns its result. Raises InvalidField if the file
        is invalid, crashes the process or takes too long; Overloaded if there is not enough memory;
        BackendUnavailable as `process` does. `name` is the request's field with the file."""
        try:
            with self.process() as peer:
                return ask(peer)
        except TimeoutError as error:
            raise InvalidField(
                f"{name} could not be decoded within {self._timeout:g} seconds", param=name
            ) from error
        except (EOFError, ConnectionError) as error:
            raise InvalidField(
                f"{name} could not be decoded: it takes too much time or memory, or is corrupt",
                param=name,
            ) from error

    def answer(self, peer: ChildProcess, name: str) -> Any:
        """Returns the next answer of a process. Raises InvalidField if the answer is `Refused`;
        TimeoutError if there is none in time."""
        if not peer.connection.poll(self._timeout):
            raise TimeoutError
        answer = peer.connection.recv()
        if isinstance(answer, Refused):
            raise InvalidField(answer.message, param=name)
        return answer


def limit_decoder(max_memory: int) -> None:
    """Limits this process to a number of bytes of address space, and lets others go first."""
    warnings.simplefilter("ignore")  # decoders warn about clients' files
    set_soft_limit(resource.RLIMIT_AS, max_memory)
    os.nice(NICENESS)
