"""Reads `options`: what says how a text is generated becomes fields of the other endpoints, and
what says how Ollama loads a model changes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from fastovms.api.request.ollama_values import OllamaOptions, option_values
from fastovms.api.wire.bodies.body import show
from fastovms.errors import InvalidField
from fastovms.params import ModelInfo

TEMPERATURE: Final = 0.8
TOP_P: Final = 0.9
"""What applies where neither the request nor the model says anything; `top_k` is the dialect's."""

_FIELDS: Final[Mapping[str, str]] = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "seed": "seed",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "stop": "stop",
}
"""The fields of the other endpoints by the options that mean the same."""

_PENALTIES: Final = ("repeat_penalty", "presence_penalty", "frequency_penalty")

_NEUTRAL: Final[Mapping[str, float]] = {"typical_p": 1, "tfs_z": 1, "mirostat": 0}
"""Options of samplers that there are not, with the values that ask for nothing."""

_NAMES: Final[Mapping[str, str]] = {
    **{field: f"options.{option}" for option, field in _FIELDS.items()},
    "format.schema": "format",
}
"""What a client calls what the pipeline complains of."""

_PARAM: Final = re.compile(r"format\.schema|\w+")


class ReadOptions(NamedTuple):
    """What options ask for.

    Attributes:
        fields: those of the other endpoints.
        num_predict: how many tokens are generated at most; None = no number is given.
        warnings: what is not done.
    """

    fields: Mapping[str, Any]
    num_predict: int | None
    warnings: list[str]


def read_options(given: OllamaOptions | None, model: ModelInfo) -> ReadOptions:
    """Reads options.

    Raises:
        InvalidField: one asks for what there is not, or is no whole number.
    """
    values = option_values(OllamaOptions() if given is None else given)
    for name, neutral in _NEUTRAL.items():
        if values[name] not in (None, neutral):
            param = f"options.{name}"
            raise InvalidField(
                f"{param} must be {neutral}, as there is no such sampler here, not "
                f"{show(values[name])}",
                param=param,
            )
    warnings = _warnings(values, model)
    fields = {field: values[option] for option, field in _FIELDS.items()}
    if values["repeat_last_n"] == 0:
        fields |= {_FIELDS[option]: None for option in _PENALTIES}
    if fields["top_p"] == 0:
        # With Ollama the most probable token is left of a nucleus of nothing.
        fields |= {"top_p": 1.0, "top_k": 1}
    if fields["seed"] == -1:
        fields["seed"] = None
    for field, usual in (("temperature", TEMPERATURE), ("top_p", TOP_P)):
        if fields[field] is None and getattr(model.defaults, field) is None:
            fields[field] = usual
    return ReadOptions(fields, _num_predict(values["num_predict"]), warnings)


@contextmanager
def named_as_given() -> Iterator[None]:
    """Calls a field at fault as the client does: an option by its place in `options`."""
    try:
        yield
    except InvalidField as error:
        found = _PARAM.match(error.param or "")
        if found is None or found[0] not in _NAMES:
            raise
        name, given = found[0], _NAMES[found[0]]
        raise InvalidField(
            error.message.replace(name, given, 1),
            param=given + (error.param or "").removeprefix(name),
            code=error.code,
        ) from None


def _num_predict(value: int | None) -> int | None:
    """Returns how many tokens are generated at most. -1 is no limit, -2 what the context leaves,
    and Ollama takes 0 as no limit, too: that is the same here."""
    if value is None or value in (-2, -1, 0):
        return None
    if value < 0:
        param = "options.num_predict"
        raise InvalidField(f"{param} must be at least -2, not {value}", param=param)
    return value


def _warnings(values: Mapping[str, Any], model: ModelInfo) -> list[str]:
    warnings = []
    context, window = values["num_ctx"], values["repeat_last_n"]
    if context is not None and context > model.max_model_len:
        warnings.append(
            f"options.num_ctx is {context}, but the context of this model has "
            f"{model.max_model_len} tokens, as the server was started"
        )
    if window is not None and window > 0 and any(values[name] for name in _PENALTIES):
        warnings.append("options.repeat_last_n changes nothing: penalties count all of the text")
    return warnings
