"""Declares what the API asks of a backend, which is whatever runs a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from fastovms.backend_stats import BackendStats
from fastovms.encoding import EncodedTexts, EncoderInfo, EncoderText
from fastovms.params import GenerationOutput, GenerationRequest, Grammar, ModelInfo, SamplingParams

OutputCallback = Callable[[GenerationOutput], None]


class Backend(Protocol):
    """Runs a model, whatever it makes of its input. These methods are what is needed to start,
    watch and stop it; each is called on the event loop's thread."""

    @property
    def model(self) -> ModelInfo: ...

    @property
    def failure(self) -> str | None:
        """Why nothing can be generated any more, or None while all is well."""

    def start(self) -> None:
        """Starts work on the running event loop, to which the outputs will be handed."""

    async def warmed_up(self) -> None:
        """Returns once the first request takes no longer than later ones.

        Raises:
            EngineFailed: the backend cannot compute anything.
        """

    def stats(self) -> BackendStats: ...

    def fail(self, reason: str) -> None:
        """Declares the backend dead, which it cannot find out itself when it hangs: requests in
        flight end with `FinishReason.ERROR`, further ones are refused."""

    async def close(self) -> None:
        """Stops the work; requests in flight end with `FinishReason.ABORT`."""


class GenerationBackend(Backend, Protocol):
    """Runs a model that generates text. Every method is called on the event loop's thread."""

    async def compile_grammar(self, grammar: Grammar, client: str) -> Grammar:
        """Makes a grammar ready for `submit`, which may take seconds.

        Args:
            client: who has sent it. A request waits for at most one grammar of each other client.

        Returns:
            The grammar as `submit` wants it.

        Raises:
            RequestError: the grammar is malformed or impossible, or this model takes none.
            Overloaded: too many grammars wait.
            BackendUnavailable: nothing can be compiled now.
        """

    def check(self, params: SamplingParams) -> None:
        """Raises RequestError for what this backend cannot do, whatever the prompt is."""

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
        """Ends a request, or one of its samples, at any stage; its blocks are free at the next
        step. Unknown and finished ids are ignored, so callers abort in `finally`."""


class EncoderBackend(Backend, Protocol):
    """Runs a model that makes vectors or scores of texts. Every method is called on the event
    loop's thread."""

    @property
    def encoder(self) -> EncoderInfo: ...

    async def encode(
        self, texts: Sequence[EncoderText], client: str, priority: int = 0
    ) -> EncodedTexts:
        """Encodes texts, of which there is at least one. A caller that cancels it gives them up:
        the rest is not computed.

        Args:
            texts: none is longer than the model's context, and all ids are of its vocabulary.
            client: who has sent them: clients take turns.
            priority: lower is sooner, whichever clients they are from.

        Raises:
            Overloaded: too many requests or tokens wait already.
            BackendUnavailable: not started or closed.
            EngineFailed: the engine has died.
        """
