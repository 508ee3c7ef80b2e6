"""Queues the prompts of one API request together, or none of them."""

from __future__ import annotations

from collections.abc import Iterable

from fastovms.backend import GenerationBackend, OutputCallback
from fastovms.errors import InvalidField, Overloaded
from fastovms.params import GenerationRequest


def submit_all(
    backend: GenerationBackend, submissions: Iterable[tuple[GenerationRequest, OutputCallback]]
) -> None:
    """Queues the prompts. Nothing runs before it has returned: when it raises, the caller aborts
    what was queued.

    Raises:
        InvalidField: even an empty queue is too short, so that trying again would not help.
        RequestError: a prompt can never run.
        BackendError: the backend cannot take the prompts.
    """
    num_others = backend.stats().num_waiting
    num_queued = 0
    for request, on_output in submissions:
        try:
            backend.submit(request, on_output)
        except Overloaded:
            if num_others or not num_queued:
                raise
            name = "prompt" if request.params.n == 1 else "n"
            raise InvalidField(
                f"{name} asks for more samples than may wait at once: of all prompts' samples only "
                f"{num_queued} could be queued",
                param=name,
            ) from None
        num_queued += request.params.n
