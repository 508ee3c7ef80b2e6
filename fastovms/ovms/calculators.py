"""Lists the calculators of OpenVINO Model Server whose graphs are read, with their options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fastovms.config.settings import ENCODER, ENGINE, FILES, ConfigField
from fastovms.encoding import Task
from fastovms.ovms.options import OVMS_OPTIONS, Choice, Group, Integer, Kind, OvmsOption


@dataclass(frozen=True, slots=True)
class Calculator:
    """What runs a model in a graph.

    Attributes:
        messages: the names of the message that holds its options.
        options: by their names in the graph.
        implied: what a graph with it says of the model without an option.
    """

    messages: tuple[str, ...]
    options: Mapping[str, OvmsOption]
    implied: Mapping[ConfigField, Any] = field(default_factory=dict)

    @property
    def group(self) -> Group:
        kinds: dict[str, Kind] = {name: option.kind for name, option in self.options.items()}
        return Group(kinds, ("models_path",))


def _messages(name: str) -> tuple[str, ...]:
    return f"mediapipe.{name}", f"mediapipe.{name}.ext"


_MODEL: Final = {
    "models_path": OvmsOption(str, FILES.path),
    "target_device": OvmsOption(str, ENGINE.device, neutral=("",)),
    "plugin_config": OvmsOption(str, ENGINE.plugin_config, neutral=("",)),
}
_LENGTH: Final = OvmsOption(Integer(1), ENGINE.max_model_len)

CALCULATORS: Final[Mapping[str, Calculator]] = {
    "HttpLLMCalculator": Calculator(
        _messages("LLMCalculatorOptions"),
        {option.graph: option for option in OVMS_OPTIONS if option.graph},
    ),
    "EmbeddingsCalculatorOV": Calculator(
        _messages("EmbeddingsCalculatorOVOptions"),
        {
            **_MODEL,
            "normalize_embeddings": OvmsOption(bool, ENCODER.normalize),
            "pooling": OvmsOption(Choice(("CLS", "LAST", "MEAN")), ENCODER.pooling),
            "truncate": OvmsOption(bool, ENCODER.truncate),
        },
        {ENCODER.task: Task.EMBEDDINGS.value},
    ),
    "RerankCalculatorOV": Calculator(
        _messages("RerankCalculatorOVOptions"),
        {
            **_MODEL,
            "max_allowed_chunks": OvmsOption(Integer(1), ENCODER.max_allowed_chunks),
            "max_position_embeddings": _LENGTH,
            "max_length": _LENGTH,
        },
        {ENCODER.task: Task.RERANK.value},
    ),
}
