"""A backend that serves a model together with one LoRA adapter."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from fastovms.backend import GenerationBackend, OutputCallback
from fastovms.backend_stats import BackendStats
from fastovms.params import Adapter, GenerationRequest, Grammar, ModelInfo, SamplingParams


class AdapterBackend:
    """Passes requests to the model's backend with the adapter set. Implements `GenerationBackend`;
    the model's backend is started and closed elsewhere."""

    def __init__(self, backend: GenerationBackend, adapter: Adapter) -> None:
        self._backend = backend
        self._adapter = adapter
        fingerprint = backend.model.fingerprint
        if fingerprint:
            fingerprint = hashlib.sha256(fingerprint.encode() + adapter.digest).hexdigest()
        self._model = replace(
            backend.model, name=adapter.name, created=adapter.created, fingerprint=fingerprint
        )

    @property
    def model(self) -> ModelInfo:
        return self._model

    @property
    def failure(self) -> str | None:
        return self._backend.failure

    def start(self) -> None:
        """Does nothing, because the model's backend is started separately."""

    async def warmed_up(self) -> None:
        await self._backend.warmed_up()

    def stats(self) -> BackendStats:
        return self._backend.stats()

    def fail(self, reason: str) -> None:
        self._backend.fail(reason)

    async def close(self) -> None:
        """Does nothing, because the model's backend is closed separately."""

    async def compile_grammar(self, grammar: Grammar, client: str) -> Grammar:
        return await self._backend.compile_grammar(grammar, client)

    def check(self, params: SamplingParams) -> None:
        self._backend.check(params)

    def submit(self, request: GenerationRequest, on_output: OutputCallback) -> None:
        self._backend.submit(replace(request, adapter=self._adapter), on_output)

    def abort(self, request_id: str, index: int | None = None) -> None:
        self._backend.abort(request_id, index)
