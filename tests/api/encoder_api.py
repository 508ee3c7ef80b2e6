"""The API with fake encoder models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry

from fastovms.api.admin import HealthRoutes, ServerStatus
from fastovms.api.body import BodyReader, FairThread
from fastovms.api.context import ApiContext
from fastovms.api.served import ServedModels
from fastovms.app.routes import add_health_routes, add_model_routes
from fastovms.backend_stats import BackendStats
from fastovms.config import ApiConfig, EncoderConfig
from fastovms.http.routing import Router
from fastovms.params import ModelInfo, Task
from fastovms.parts.embeddings.encoder import EncodedTexts, EncoderInfo, EncoderText
from fastovms.parts.embeddings.served import ServedEncoder
from fastovms.telemetry.metrics import GenerationMetrics
from fastovms.telemetry.tracing import Tracer
from fastovms.text.text_encoder import PairTemplate
from tests.api.fake_api import Api
from tests.fakes import model_info

CLS, SEP = 256, 257
PAIR = PairTemplate([CLS, -1, SEP, -2, SEP], [0, 0, 0, 1, 1])


class ByteTexts:
    """Encodes a text as one token per byte between two special tokens."""

    before = np.array([CLS], np.int64)
    behind = np.array([SEP], np.int64)
    num_added = 2
    pad_token_id = 0
    keeps_spaces = True

    def __init__(self, pair: PairTemplate | None = PAIR, *, has_detokenizer: bool = True) -> None:
        self.pair = pair
        self.has_detokenizer = has_detokenizer
        self.calls: list[list[str]] = []

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.int64]]:
        self.calls.append(list(texts))
        return [np.array(list(text.encode()), np.int64) for text in texts]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        assert self.has_detokenizer
        written = {CLS: "[CLS]", SEP: "[SEP]"}
        return "".join(
            "" if skip_special_tokens and id in written else written.get(id, chr(id))
            for id in token_ids
        )

    def enclosed(self, token_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.concatenate([self.before, token_ids, self.behind])


class FakeEncoder:
    """Returns for each text the number of tokens, their sum, the last token, and the number of
    tokens of the second of two texts. The logit of a reranker is the sum of the second text's
    tokens.

    Attributes:
        encoded: the texts of every call in order, with its client.
        priorities: the priorities of the calls.
        error: raised by `encode` if it is set.
    """

    failure = None

    def __init__(self, info: EncoderInfo, model: ModelInfo) -> None:
        self.encoder = info
        self.model = model
        self.encoded: list[tuple[Sequence[EncoderText], str]] = []
        self.priorities: list[int] = []
        self.error: Exception | None = None

    @property
    def submitted(self) -> list[tuple[Sequence[EncoderText], str]]:
        """The same list by the name that other fakes use."""
        return self.encoded

    def start(self) -> None:
        pass

    async def encode(
        self, texts: Sequence[EncoderText], client: str, priority: int = 0
    ) -> EncodedTexts:
        self.encoded.append((texts, client))
        self.priorities.append(priority)
        if self.error is not None:
            raise self.error
        rows = [self._row(text)[: self.encoder.width] for text in texts]
        return EncodedTexts(np.array(rows, np.float32), 0.25, 0.5)

    def _row(self, text: EncoderText) -> list[float]:
        ids = text.token_ids
        second = ids[text.type_ids == 1] if text.type_ids is not None else ids
        if self.encoder.task is Task.RERANK:
            return [0.0, float(second.sum() % 7)][2 - self.encoder.width :]
        return [float(len(ids)), float(ids.sum()), float(ids[-1]), 1.0]

    def stats(self) -> BackendStats:
        return BackendStats()

    def fail(self, reason: str) -> None:
        raise NotImplementedError

    async def warmed_up(self) -> None:
        pass

    async def close(self) -> None:
        pass


def served_encoder(
    task: Task = Task.EMBEDDINGS,
    *,
    name: str = "fake",
    width: int | None = None,
    joins_pairs: bool = False,
    max_model_len: int = 64,
    pair: PairTemplate | None = PAIR,
    has_detokenizer: bool = True,
    **config: object,
) -> ServedEncoder:
    """Returns a model of a fake encoder with `EncoderConfig(**config)`."""
    info = EncoderInfo(task, width or (4 if task is Task.EMBEDDINGS else 1), joins_pairs)
    model = replace(model_info(name=name, max_model_len=max_model_len), vocab_size=258)
    backend = FakeEncoder(info, model)
    metrics = GenerationMetrics(name, backend.stats, has_kv_cache=False)
    tokenizing = FairThread("texts", per_client=10, total=20)
    texts = ByteTexts(pair, has_detokenizer=has_detokenizer)
    return ServedEncoder(backend, texts, EncoderConfig(**config), metrics, tokenizing)


class EncoderApi(Api):
    """Calls the routes of a server with such models."""

    def __init__(
        self,
        *served: ServedEncoder,
        models: Sequence[object] = (),
        tracer: Tracer | None = None,
    ) -> None:
        """
        Args:
            models: further ones, which do not encode.
        """
        self.served = served
        self.backend = served[0].backend
        self.last_request = None
        self.registry = CollectorRegistry()
        self.metrics = served[0].metrics
        known = ServedModels([*served, *models])
        ids = count(1)
        self.router = Router()
        self.context = ApiContext(
            known,
            ApiConfig(),
            new_id=lambda: f"{next(ids):032x}",
            unix_time=lambda: 1_750_000_000.5,
            bodies=BodyReader(),
            tracer=tracer,
        )
        add_model_routes(self.router, self.context)
        self.status = ServerStatus.serving(known)
        add_health_routes(self.router, HealthRoutes(self.status, self.registry, "1.2.3"))

    def close(self) -> None:
        for served in self.served:
            served.tokenizing.close()
        self.context.bodies.close()
