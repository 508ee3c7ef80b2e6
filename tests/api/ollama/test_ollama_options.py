"""What options become."""

from __future__ import annotations

from typing import Any

import pytest

from fastovms.api.ollama.ollama_options import named_as_given, read_options
from fastovms.api.request.ollama_values import OllamaOptions
from fastovms.errors import InvalidField
from fastovms.params import SamplingDefaults
from tests.fakes import model_info

MODEL = model_info(max_model_len=100)


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({}, {"temperature": 0.8, "top_p": 0.9}),
        ({"temperature": 0, "top_p": 1, "top_k": 5.0}, {"temperature": 0, "top_p": 1, "top_k": 5}),
        ({"repeat_penalty": 1.1, "min_p": 0.1}, {"repetition_penalty": 1.1, "min_p": 0.1}),
        ({"presence_penalty": 1, "frequency_penalty": -1},
         {"presence_penalty": 1, "frequency_penalty": -1}),
        ({"repeat_last_n": 0, "repeat_penalty": 1.1}, {"repetition_penalty": None}),
        ({"repeat_last_n": -1, "repeat_penalty": 1.1}, {"repetition_penalty": 1.1}),
        ({"top_p": 0, "top_k": 40}, {"top_p": 1.0, "top_k": 1}),
        ({"seed": 5}, {"seed": 5}),
        ({"seed": -1}, {"seed": None}),
        ({"stop": ["a"]}, {"stop": ["a"]}),
        ({"typical_p": 1, "tfs_z": 1.0, "mirostat": 0, "num_gpu": 3, "use_mmap": True}, {}),
    ],
)  # fmt: skip
def test_fields(options: dict[str, Any], fields: dict[str, Any]) -> None:
    read = read_options(OllamaOptions(**options), MODEL)
    assert fields.items() <= read.fields.items()
    assert read.warnings == []


def test_the_models_defaults_go_before_ollamas() -> None:
    model = model_info(defaults=SamplingDefaults(temperature=0.6))
    fields = read_options(None, model).fields
    assert (fields["temperature"], fields["top_p"]) == (None, 0.9)


@pytest.mark.parametrize(
    ("given", "most"), [(None, None), (-1, None), (-2, None), (0, None), (7, 7), (7.0, 7)]
)
def test_num_predict(given: float | None, most: int | None) -> None:
    assert read_options(OllamaOptions(num_predict=given), MODEL).num_predict == most


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_predict": -3}, "options.num_predict must be at least -2, not -3"),
        ({"num_predict": 1.5}, "options.num_predict must be an integer, not 1.5"),
        ({"mirostat": 2}, "options.mirostat must be 0, as there is no such sampler here, not 2"),
        ({"typical_p": 0.5}, "options.typical_p must be 1"),
        ({"tfs_z": 0.5}, "options.tfs_z must be 1"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidField, match=message):
        read_options(OllamaOptions(**options), MODEL)


@pytest.mark.parametrize(
    ("options", "warning"),
    [
        ({"num_ctx": 101}, "options.num_ctx is 101, but the context of this model has 100"),
        ({"repeat_last_n": 64, "repeat_penalty": 1.1}, "options.repeat_last_n changes nothing"),
    ],
)
def test_warnings(options: dict[str, Any], warning: str) -> None:
    [found] = read_options(OllamaOptions(**options), MODEL).warnings
    assert found.startswith(warning)
    assert read_options(OllamaOptions(num_ctx=100, repeat_last_n=64), MODEL).warnings == []


@pytest.mark.parametrize(
    ("param", "message", "told_param", "told"),
    [
        ("temperature", "temperature must be 1", "options.temperature",
         "options.temperature must be 1"),
        ("stop[1]", "stop[1] must not be", "options.stop[1]", "options.stop[1] must not be"),
        ("repetition_penalty", "repetition_penalty is", "options.repeat_penalty",
         "options.repeat_penalty is"),
        ("format.schema", "format.schema: no", "format", "format: no"),
        ("messages", "messages are", "messages", "messages are"),
        (None, "no field", None, "no field"),
    ],
)  # fmt: skip
def test_names(param: str | None, message: str, told_param: str | None, told: str) -> None:
    with pytest.raises(InvalidField) as caught, named_as_given():
        raise InvalidField(message, param=param, code="c")
    assert (caught.value.param, caught.value.message) == (told_param, told)
    assert caught.value.code == "c"
