"""Finds the model that a request names, by any of its names, or refuses with 404; with its
tokenizer, chat format and limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from fastovms.api.serving.chat_model import ChatModel
from fastovms.api.serving.images import ImageInput
from fastovms.api.wire.dialect import Dialect
from fastovms.api.wire.error_responses import model_not_found
from fastovms.backend import GenerationBackend
from fastovms.config import ModelLimits
from fastovms.errors import InvalidField
from fastovms.metrics import GenerationMetrics
from fastovms.params import ModelInfo
from fastovms.text.tokens.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model with what turns its tokens into text and counts them.

    Attributes:
        aliases: names that requests may use in place of the model's, which answers carry.
        images: None = it takes none.
    """

    backend: GenerationBackend
    tokenizer: Tokenizer
    metrics: GenerationMetrics
    limits: ModelLimits = field(default_factory=ModelLimits)
    chat: ChatModel = field(default_factory=ChatModel)
    aliases: tuple[str, ...] = ()
    images: ImageInput | None = None

    @property
    def info(self) -> ModelInfo:
        return self.backend.model


class ServedModels:
    """Looks models up by the name that a request gives.

    Attributes:
        close: gives back what the models share besides their backends. Takes at most a few
            seconds: not for the event loop.
    """

    def __init__(
        self, models: Sequence[ServedModel], close: Callable[[], None] = lambda: None
    ) -> None:
        """
        Args:
            models: the first one answers requests that name none, where the dialect allows it.
        """
        self.close = close
        self._models = tuple(models)
        self._by_name = {
            name: model for model in models for name in (model.info.name, *model.aliases)
        }

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models)

    def get(self, name: str) -> ServedModel | None:
        return self._by_name.get(name)

    def find(self, name: str | None, dialect: Dialect) -> ServedModel:
        """Returns the model of a name.

        Raises:
            InvalidField: a model must be named.
            ModelNotFound: it is unknown.
        """
        if name is None:
            if dialect.model_required:
                raise InvalidField("model is required and must be a string", param="model")
            return self._models[0]
        model = self._by_name.get(name)
        if model is None:
            raise model_not_found(name)
        return model

    @property
    def failure(self) -> str | None:
        """Why one of the models can generate no more, or None while all is well."""
        for model in self._by_name.values():  # a plain loop: every request asks
            failure = model.backend.failure
            if failure is not None:
                return failure
        return None
