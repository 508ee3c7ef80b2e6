"""Holds a model of embeddings or a reranker, with its tokenizer, its settings and a thread that
tokenizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fastovms.api.serving.release import Release, no_hold
from fastovms.api.wire.bodies.fair_thread import FairThread
from fastovms.backend import EncoderBackend
from fastovms.config.encoder_config import EncoderConfig
from fastovms.encoding import Task
from fastovms.params import ModelInfo
from fastovms.telemetry.metrics import GenerationMetrics
from fastovms.text.tokens.text_encoder import TextEncoder

CAPABILITIES: Final[Mapping[Task, tuple[str, ...]]] = {
    Task.EMBEDDINGS: ("embedding",),
    Task.RERANK: ("rerank",),
}
"""What a client may do with a model, in the words of Ollama's `/api/show`, of which "rerank" is
none."""


@dataclass(frozen=True, slots=True)
class ServedEncoder:
    """A model in memory that encodes texts.

    Attributes:
        tokenizing: makes tokens of texts, and pairs of them, a few at a time.
        aliases: names that requests may use in place of the model's, which answers carry.
        hold: takes it into use; nobody unloads it then.
    """

    backend: EncoderBackend
    texts: TextEncoder
    config: EncoderConfig
    metrics: GenerationMetrics
    tokenizing: FairThread[Any]
    aliases: tuple[str, ...] = ()
    hold: Callable[[], Release] = no_hold

    @property
    def info(self) -> ModelInfo:
        return self.backend.model

    @property
    def task(self) -> Task:
        return self.backend.encoder.task

    @property
    def joins_pairs(self) -> bool:
        """Whether it is a reranker that reads the two texts of a pair as one."""
        is_pairless = self.texts.pair is None or self.backend.encoder.joins_pairs
        return self.task is Task.RERANK and is_pairless

    @property
    def capabilities(self) -> tuple[str, ...]:
        return CAPABILITIES[self.task]
