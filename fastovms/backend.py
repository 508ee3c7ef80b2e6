"""The interface between the API and the backends that run models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from fastovms.backend_stats import BackendStats
from fastovms.params import GenerationOutput, GenerationRequest, Grammar, ModelInfo, SamplingParams

OutputCallback = Callable[[GenerationOutput], None]


class Backend(Protocol):
    """A backend that runs a model of any task. These methods start, monitor and stop it; call them
    on the event loop's thread."""

    @property
    def model(self) -> ModelInfo:
        """The properties of the model."""

    @property
    def failure(self) -> str | None:
        """The reason why the backend has failed; None = it has not."""

    def start(self) -> None:
        """Starts work. Outputs are passed to the running event loop."""

    async def warmed_up(self) -> None:
        """Returns once the first request takes no longer than later ones.

        Raises:
            EngineFailed: the backend cannot compute anything.
        """

    def stats(self) -> BackendStats:
        """Returns the current statistics."""

    def fail(self, reason: str) -> None:
        """Marks the backend as failed, for example because it hangs. Requests in flight end with
        `FinishReason.ERROR`, further ones are refused."""

    async def close(self) -> None:
        """Stops the work; requests in flight end with `FinishReason.ABORT`."""


class GenerationBackend(Backend, Protocol):
    """A backend that runs a model that generates text. Call every method on the event loop's
    thread."""

    async def compile_grammar(self, grammar: Grammar, client: str) -> Grammar:
        """Compiles a grammar for `submit`, which may take seconds.

        Args:
            client: the sender. A grammar waits for at most one grammar of each other client.

        Returns:
            The compiled grammar.

        Raises:
            RequestError: the grammar is malformed or impossible, or the model does not support
                grammars.
            Overloaded: too many grammars wait.
            BackendUnavailable: the compiler is not available.
        """

    def check(self, params: SamplingParams) -> None:
        """Raises RequestError for parameters that this backend does not support, independent of the
        prompt."""

    def submit(self, request: GenerationRequest, on_output: OutputCallback) -> None:
        """Queues a request.

        `on_output` is called on the loop once per sample and step, in order, until each of the
        `n` samples has had an output with a `finish_reason`. It must not block and must not raise.
        It is not called before `submit` has returned, and never after `abort`.

        Raises:
            RequestError: the request can never run (too long for the model or the cache).
            Overloaded: too many requests wait already.
            BackendUnavailable: not started or closed.
            EngineFailed: the engine has died.
        """

    def abort(self, request_id: str, index: int | None = None) -> None:
        """Ends a request, or one of its samples, at any stage; its KV-cache blocks are freed at the
        next step. Unknown and finished ids are ignored, so callers abort in `finally`."""
