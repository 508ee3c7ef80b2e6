"""Pools of processes that decode files. Decoders are native code that reads untrusted bytes: in a
process, a crash affects only one file, and memory returns to the operating system."""

from __future__ import annotations

import os
import resource
import warnings
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

from fastovms.backends.processes import NICENESS, ChildProcess, ProcessPool, set_soft_limit
from fastovms.errors import InvalidField

TIMEOUT: Final = 60.0
"""The timeout in seconds for an answer of a process."""

Result = TypeVar("Result")


class Refused(NamedTuple):
    """Reports that the file is invalid; the parent raises the error for clients."""

    message: str


class DecoderPool(ProcessPool):
    """A pool of processes, each of which decodes one file at a time.

    Args:
        what: the kind of file for messages, such as "image".
        timeout: the timeout in seconds for an answer of a process.
    """

    def __init__(
        self, what: str, start: Callable[[], ChildProcess], *, max_processes: int, timeout: float
    ) -> None:
        super().__init__((what, "decoded"), start, max_processes=max_processes, is_ready=True)
        self._timeout = timeout

    def run(self, name: str, ask: Callable[[ChildProcess], Result]) -> Result:
        """Calls `ask` with an idle process and returns its result. Raises InvalidField if the file
        is invalid, crashes the process or takes too long; Overloaded if memory is short;
        BackendUnavailable as `process` does. `name` is the request field with the file."""
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
        TimeoutError if there is no answer in time."""
        if not peer.connection.poll(self._timeout):
            raise TimeoutError
        answer = peer.connection.recv()
        if isinstance(answer, Refused):
            raise InvalidField(answer.message, param=name)
        return answer


def limit_decoder(max_memory: int) -> None:
    """Limits the address space of this process to `max_memory` bytes, and lowers its priority."""
    warnings.simplefilter("ignore")  # decoders warn about clients' files
    set_soft_limit(resource.RLIMIT_AS, max_memory)
    os.nice(NICENESS)
