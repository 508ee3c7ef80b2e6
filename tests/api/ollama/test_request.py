"""Tests of `fastovms/parts/ollama/request.py`."""

from __future__ import annotations

from typing import Any

import pytest

from fastovms.api.dialect import OLLAMA
from fastovms.api.image_parts import ImageSource, RequestImages, image_tag
from fastovms.errors import InvalidField
from fastovms.params import GrammarKind, SamplingDefaults, SamplingFields, sampling_numbers
from fastovms.parts.ollama.request import (
    OllamaOptions,
    read_ollama_messages,
    read_options,
)
from tests.api.ollama.ollama_requests import (
    ASKED,
    CHAT,
    GENERATE,
    PROMPTED,
    ask,
    lines,
    make,
    refused,
)
from tests.fakes import model_info

# The sampling parameters of options.


MODEL = model_info(max_model_len=100)


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({}, {"temperature": None, "top_p": None}),
        ({"temperature": 0, "top_p": 1, "top_k": 5.0}, {"temperature": 0, "top_p": 1, "top_k": 5}),
        ({"repeat_penalty": 1.1, "min_p": 0.1}, {"repetition_penalty": 1.1, "min_p": 0.1}),
        ({"presence_penalty": 1, "frequency_penalty": -1},
         {"presence_penalty": 1, "frequency_penalty": -1}),
        ({"repeat_last_n": 0, "repeat_penalty": 1.1}, {"repetition_penalty": None}),
        ({"repeat_last_n": -1, "repeat_penalty": 1.1}, {"repetition_penalty": 1.1}),
        ({"top_p": 0, "top_k": 40}, {"top_p": 1.0, "top_k": 1}),
        ({"num_predict": 7.0, "seed": 5}, {"seed": 5}),
        ({"seed": -1}, {"seed": None}),
        ({"stop": ["a"]}, {"stop": ["a"]}),
        ({"typical_p": 1, "tfs_z": 1.0, "mirostat": 0, "num_gpu": 3, "use_mmap": True}, {}),
    ],
)  # fmt: skip
def test_options_become_sampling_fields_without_warnings(
    options: dict[str, Any], fields: dict[str, Any]
) -> None:
    read = read_options(OllamaOptions(**options), MODEL)
    assert fields.items() <= read.fields.items()
    assert read.warnings == []
    assert read.num_predict == (7 if "num_predict" in options else None)


def test_defaults_of_the_model_override_those_of_ollama() -> None:
    numbers = sampling_numbers(SamplingFields(), SamplingDefaults(temperature=0.6), OLLAMA.name)
    assert numbers == {"temperature": 0.6, "top_p": 0.9, "top_k": 40}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_predict": -3}, "options.num_predict must be at least -2, not -3"),
        ({"num_predict": 1.5}, "options.num_predict must be an integer, not 1.5"),
        (
            {"mirostat": 2},
            "options.mirostat must be 0, because this sampler is not supported, not 2",
        ),
        ({"typical_p": 0.5}, "options.typical_p must be 1"),
        ({"tfs_z": 0.5}, "options.tfs_z must be 1"),
    ],
)
def test_unsupported_option_values_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidField, match=message):
        read_options(OllamaOptions(**options), MODEL)


@pytest.mark.parametrize(
    ("options", "warning"),
    [
        ({"num_ctx": 101}, "options.num_ctx is 101, but the context of this model has 100"),
        ({"repeat_last_n": 64, "repeat_penalty": 1.1}, "options.repeat_last_n changes nothing"),
    ],
)
def test_num_ctx_and_repeat_last_n_without_effect_warn(
    options: dict[str, Any], warning: str
) -> None:
    [found] = read_options(OllamaOptions(**options), MODEL).warnings
    assert found.startswith(warning)
    assert read_options(OllamaOptions(num_ctx=100, repeat_last_n=64), MODEL).warnings == []


# Messages of Ollama's clients.


USER = {"role": "user", "content": "Look"}


def read(*messages: dict[str, Any], takes_images: bool = True) -> Any:
    return read_ollama_messages(messages, OLLAMA, RequestImages(3) if takes_images else None)


def call(name: str = "add", **members: Any) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": {"a": 1}}, **members}


def test_images_precede_the_text_of_their_message() -> None:
    found = read(
        {**USER, "images": ["aGk=", "data:image/png;base64,aGk="]}, {**USER, "images": ["eA=="]}
    )
    assert [message["content"] for message in found.messages] == [
        f"{image_tag(0)}{image_tag(1)}Look",
        f"{image_tag(2)}Look",
    ]
    assert found.images == [
        ImageSource("data:image/*;base64,aGk=", "messages[0].images[0]"),
        ImageSource("data:image/png;base64,aGk=", "messages[0].images[1]"),
        ImageSource("data:image/*;base64,eA==", "messages[1].images[0]"),
    ]


def test_tool_results_get_the_ids_of_their_calls() -> None:
    found = read(
        USER,
        {"role": "assistant", "tool_calls": [call("add"), call("sub"), call("mul", id="mine")]},
        {"role": "tool", "content": "1", "tool_name": "sub"},
        {"role": "tool", "content": "2"},
        {"role": "tool", "content": "3", "tool_call_id": "mine"},
        {"role": "tool", "content": "4"},
        {"role": "assistant", "content": "", "tool_calls": [call("add")]},
        {"role": "tool", "content": "5", "tool_name": "other"},
    ).messages
    ids = [each["id"] for each in found[1]["tool_calls"]]
    assert ids == ["call00000", "call00001", "mine"]
    results = [(each.get("name"), each.get("tool_call_id")) for each in found[2:6]]
    assert results == [("sub", ids[1]), ("add", ids[0]), ("mul", "mine"), (None, None)]
    assert found[7]["tool_call_id"] == found[6]["tool_calls"][0]["id"] == "call00003"
    assert found[1]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 1}}


def test_thinking_becomes_reasoning_content() -> None:
    [_, answer] = read(USER, {"role": "assistant", "content": "a", "thinking": "hm"}).messages
    assert answer == {"role": "assistant", "content": "a", "reasoning_content": "hm"}


@pytest.mark.parametrize(
    ("message", "takes_images", "words"),
    [
        ({**USER, "images": ["aGk="]}, False, r"messages\[0\].images: this model takes no images"),
        ({**USER, "images": "aGk="}, True, r"messages\[0\].images must be a list of base64"),
        ({**USER, "images": [5]}, True, r"messages\[0\].images\[0\] must be base64, not 5"),
        (
            {**USER, "images": ["aGk="] * 4},
            True,
            r"messages\[0\].images\[3\] is one image too many",
        ),
        ({"content": "a"}, True, r"messages\[0\].role must be a string, not null"),
        ({**USER, "content": 5}, True, r"messages\[0\].content must be a string"),
    ],
)
def test_invalid_message_is_refused_by_its_place(
    message: dict[str, Any], takes_images: bool, words: str
) -> None:
    with pytest.raises(InvalidField, match=words):
        read(message, takes_images=takes_images)


# The fields that both endpoints share.


__all__ = ["make"]
ENDPOINTS = ((CHAT, ASKED), (GENERATE, PROMPTED))


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
async def test_options_reach_the_backend(make, path, body):
    options = {"temperature": 0, "top_p": 0.5, "top_k": 7, "min_p": 0.1, "seed": 3.0,
               "num_predict": 4, "repeat_penalty": 1.5, "presence_penalty": 1,
               "frequency_penalty": 0.5, "num_ctx": 4096, "stop": ["zz"]}  # fmt: skip
    api = make()
    answer = await ask(api, path, {**body, "options": options})
    params = api.backend.submitted[0].params
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0, 0.5, 7, 0.1)
    assert (params.seed, params.max_tokens, params.repetition_penalty) == (3, 4, 1.5)
    assert (params.presence_penalty, params.frequency_penalty) == (1, 0.5)
    assert answer["done_reason"] == "length"
    api = make()
    await ask(api, path, body)
    params = api.backend.submitted[0].params
    assert (params.temperature, params.top_p, params.top_k) == (0.8, 0.9, 40)


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ("json", GrammarKind.JSON_OBJECT),
        ({"type": "object"}, GrammarKind.JSON_SCHEMA),
        ("", None),
        (None, None),
    ],
)
async def test_format_selects_the_grammar_kind(make, path, body, given, kind):
    api = make()
    await ask(api, path, {**body, "format": given})
    assert [grammar.kind for grammar in api.backend.compiled] == ([] if kind is None else [kind])


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"options": {"temperature": 3}}, "options.temperature must be at least 0 and at most 2"),
        ({"options": {"temperature": "x"}}, 'options.temperature must be a number, not "x"'),
        ({"options": {"stop": [""]}}, "options.stop[0] must not be an empty string"),
        ({"options": {"num_predict": 2**40}}, ""),
        ({"format": "yaml"}, 'format must be "json" or a JSON schema, not "yaml"'),
        ({"format": {"bad": 1}}, "format: bad JSON schema"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs must be at least 0 and at most 20"),
        ({"top_logprobs": 2}, "top_logprobs is only allowed when logprobs is true"),
        ({"keep_alive": "soon"}, "keep_alive must be a number of seconds"),
        ({"think": "hard"}, "think must be true, false or one of"),
        ({"model": None}, "model is required"),
    ],
)
async def test_invalid_fields_are_refused_and_large_num_predict_accepted(
    make, path, body, fields, message
):
    api = make()
    if message:
        assert message in await refused(api, path, {**body, **fields})
    else:
        await ask(api, path, {**body, **fields})


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
async def test_unknown_model_is_a_404_and_latest_tag_is_accepted(make, path, body):
    assert (
        await refused(make(), path, {**body, "model": "x"}, 404)
        == "model 'x' not found: this server has `fake`"
    )
    answer = await ask(make(), path, {**body, "model": "fake:latest"})
    assert answer["model"] == "fake:latest"


async def test_answer_is_streamed_by_default(make):
    for stream in ({}, {"stream": None}, {"stream": True}):
        api = make()
        assert len(await lines(api, CHAT, {**ASKED, **stream})) > 2
        assert api.last_request.log_fields["stream"] is True
    api = make()
    await ask(api, CHAT, ASKED)
    assert api.last_request.log_fields["stream"] is False
