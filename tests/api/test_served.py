"""Tests of `fastovms/api/served.py`."""

from __future__ import annotations

import base64
import json
import logging
import random
from pathlib import Path
from typing import Any

import pytest

from fastovms.api.dialect import OLLAMA, OPENAI, model_not_found
from fastovms.api.rendering import load_chat
from fastovms.api.served import KnownModel, ModelState, ServedModels
from fastovms.config import ChatConfig
from fastovms.errors import ConfigurationError, FieldFault, ModelNotFound
from fastovms.params import ModelInfo, Refusal, Task
from fastovms.parts.media.decode import PixelBound
from fastovms.parts.media.loader import ImageLoader
from fastovms.parts.several_models.residency import Move, MoveKind, Residency
from fastovms.server_config import (
    DEMO_MODEL,
    NO_GROUP,
    MediaConfig,
    ModelResidency,
    ResidencyConfig,
)
from fastovms.text.template import ChatTemplate
from tests.api.chat_models import MESSAGES, chat_model
from tests.api.encoder_api import served_encoder
from tests.api.test_models import several_models
from tests.fakes import ByteTokenizer, FakeStream, model_info
from tests.media.pictures import BLUE, RED, png

# Images in chats with fakes: refusals, and the backend's inputs.


V1 = "/v1/chat/completions"
V3 = "/v3/chat/completions"
COMPLETIONS = "/v1/completions"
TAG = "<ov_genai_image_{}>".format
ANTHROPIC_IMAGE = {"type": "image", "source": {"type": "url", "url": "x"}}


def data_url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def image(color: tuple[int, int, int] = RED, **members: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(png(color=color)), **members}}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def user(*parts: object) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def chat(*parts: object, **fields: object) -> dict[str, Any]:
    return {"model": "fake", "messages": [user(*parts)], **fields}


@pytest.fixture
def make(make_api):
    def make_vision(script="Hello!", *, media=None, **options):
        images = ImageLoader(media or MediaConfig()).input(("<|image_pad|>",))
        model = model_info(max_model_len=2000, takes_images=True)
        return make_api(script, model=model, chat=chat_model(), images=images, **options)

    return make_vision


def error(body: dict[str, Any]) -> str:
    found = body["error"]
    return found if isinstance(found, str) else found["message"]


def given(api) -> tuple[str, list[list[int]]]:
    """Returns the text and the colours of the images that the backend was given."""
    prompt = api.backend.submitted[-1].prompt
    return prompt.text, [picture[0, 0].tolist() for picture in prompt.images]


@pytest.mark.parametrize(
    ("parts", "expected", "colors"),
    [
        ([image(detail="low"), text("what?")], f"{TAG(0)}what?", [RED]),
        ([text("what?"), image(detail=None)], f"what?{TAG(0)}", [RED]),
        ([text("a"), text("b"), image(), text("c")], f"a\nb{TAG(0)}c", [RED]),
        ([image(), image(BLUE)], TAG(0) + TAG(1), [RED, BLUE]),
        ([text("no image")], "no image", []),
    ],
)
async def test_backend_gets_text_and_images_in_order(make, parts, expected, colors):
    api = make()
    for path in (V1, V3):
        await api.answer(path, chat(*parts))
        assert given(api) == (f"u:{expected};>", [list(color) for color in colors])
        tokens = bytes(api.backend.submitted[-1].prompt_token_ids).decode()
        assert tokens == f"u:{expected};>".replace(TAG(0), "").replace(TAG(1), "")


async def test_usage_counts_the_tokens_of_images(make):
    api = make(tokens_per_step=2)
    api.backend.num_prompt_tokens = 321
    _, body = await api.post(V1, chat(image(), n=2))
    assert body["usage"]["prompt_tokens"] == 321
    assert body["usage"]["total_tokens"] == 321 + body["usage"]["completion_tokens"]
    events = await api.stream(V1, chat(image(), stream_options={"include_usage": True}))
    assert events[-2]["usage"]["prompt_tokens"] == 321
    histogram = api.metrics.request_prompt_tokens
    assert (histogram.count, histogram.buckets()[1]) == (2, 642)


@pytest.mark.parametrize("path", [V1, V3])
@pytest.mark.parametrize("stream", [False, True])
async def test_refusal_of_the_backend_is_a_400(make, path, stream):
    api = make()
    api.backend.refusal = Refusal("too many tokens", "prompt", "context_length_exceeded")
    sent = FakeStream()
    response = await api.call("POST", path, chat(image(), stream=stream), sent)
    assert response is not None
    assert response.status == 400
    assert b"too many tokens" in response.body
    assert not sent.started


async def test_unsupported_field_is_refused_before_images_are_loaded(make):
    api = make()
    api.backend.check_error = FieldFault("logit_bias", " is not supported")
    assert (
        await api.refused(V1, chat({"type": "image_url", "image_url": {"url": "data:,"}}))
        == "logit_bias"
    )


PLACE = "messages[0].content[0]"


@pytest.mark.parametrize(
    ("part", "param", "message"),
    [
        ({"type": "image_url"}, ".image_url", "must be an object or a string, not null"),
        ({"type": "image_url", "image_url": 5}, ".image_url", "must be an object or a string"),
        ({"type": "image_url", "image_url": {}}, ".image_url.url", "must be a string, not null"),
        ({"type": "image_url", "image_url": {"url": 1}}, ".image_url.url", "must be a string"),
        ({"type": "image_url", "image_url": {"url": ""}}, ".image_url.url", "must not be empty"),
        (
            image(detail="huge"),
            ".image_url.detail",
            "detail must be one of auto, low, high, original",
        ),
        (image(detail=1), ".image_url.detail", "detail must be one of"),
        ({**image(), "detail": "huge"}, ".detail", "detail must be one of"),
        ({"type": "input_image"}, ".image_url", "must be an object or a string"),
        ({"type": "input_image", "file_id": "file-1"}, ".file_id", "include the data itself"),
        ({"type": "input_audio"}, "", "takes only text and parts of type image_url or input_im"),
        ({"type": "image"}, "", 'is of type "image", but this model takes only text and parts of'),
        ({"type": "image_url", "image_url": {"url": "x.png"}}, ".image_url.url", "data URL, an"),
        (
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
            ".image_url.url",
            "must be an image in one of the formats",
        ),
        (
            {"type": "image_url", "image_url": {"url": "http://localhost/"}},
            ".image_url.url",
            "does not fetch images from localhost",
        ),
        (
            {"type": "image_url", "image_url": {"url": "/etc/passwd"}},
            ".image_url.url",
            "does not read local files",
        ),
    ],
)
async def test_invalid_image_part_is_refused_by_its_place(make, part, param, message):
    api = make()
    status, body = await api.post(V1, chat(part))
    assert status == 400
    assert body["error"]["param"] == PLACE + param
    assert message in body["error"]["message"]
    status, body = await api.post(V3, chat(part))
    assert status == 400
    assert PLACE + param in error(body)
    assert not api.backend.submitted


async def test_image_url_may_be_a_string_in_openais_dialect(make):
    api = make()
    part = {"type": "image_url", "image_url": data_url(png())}
    await api.answer(V1, chat(part))
    status, body = await api.post(V3, chat(part))
    assert (status, error(body)) == (
        400,
        f"{PLACE}.image_url must be an object, not {body['error'].rpartition(', not ')[2]}",
    )
    for path in (V1, V3):
        await api.answer(path, chat({**part, "type": "input_image"}))


async def test_image_tag_in_another_field_is_refused(make):
    api = make()
    for place, fields in {
        "documents[0].title": {"documents": [{"title": TAG(0)}]},
        "chat_template_kwargs.style": {"chat_template_kwargs": {"style": {TAG(0): 1}}},
    }.items():
        assert await api.refused(V1, chat(image(), **fields)) == place
    tools = [{"type": "function", "function": {"name": TAG(0)}}]
    status, _ = await api.post(V1, chat(image(), tools=tools))
    assert status == 400


@pytest.mark.parametrize(
    ("path", "body", "place"),
    [
        (V1, chat(*[image()] * 3), "messages[0].content[2].image_url.url"),
        ("/tokenize", chat(*[image()] * 3), "messages[0].content[2].image_url.url"),
        (
            "/v1/messages",
            {"model": "fake", "max_tokens": 5, "messages": [user(*[ANTHROPIC_IMAGE] * 3)]},
            "messages[0].content[2].source.url",
        ),
        (
            "/v1/responses",
            {"model": "fake", "input": [user(*[{"type": "input_image", "image_url": "x"}] * 3)]},
            "input[0].content[2].image_url",
        ),
        (
            "/api/chat",
            {
                "model": "fake",
                "messages": [{"role": "user", "content": "a", "images": ["aGk="] * 3}],
                "truncate": False,
            },
            "messages[0].images[2]",
        ),
    ],
)
async def test_too_many_images_are_refused_before_the_prompt_is_rendered(
    make, monkeypatch, path, body, place
):
    def render(self, *arguments, **options):
        raise AssertionError("the prompt is made though an image is one too many")

    monkeypatch.setattr(ChatTemplate, "render", render)
    status, answer = await make(media=MediaConfig(max_images=2)).post(path, body)
    assert (status, error(answer).partition(" is ")[0]) == (400, place)


async def test_model_without_vision_refuses_images(make_api):
    api = make_api(model=model_info(max_model_len=500), chat=chat_model())
    for path in (V1, V3):
        status, body = await api.post(path, chat(image()))
        assert status == 400
        assert "but this model takes only text" in error(body)
    await api.answer(V1, chat(text(f"{TAG(0)} is a text like any other")))
    assert api.backend.submitted[-1].prompt is None


async def test_tokenize_refuses_images(make):
    api = make()
    status, body = await api.post("/tokenize", chat(text("a"), image()))
    assert (status, body["error"]["param"]) == (400, "messages[0].content[1].image_url.url")
    assert "only known when they are read" in error(body)
    await api.answer("/tokenize", chat(text("a")))


@pytest.mark.parametrize(
    ("path", "fields", "param", "told"),
    [
        (V1, {"logprobs": True, "top_logprobs": 2}, "logprobs", "top_logprobs"),
        (COMPLETIONS, {"prompt": "a", "logprobs": 2}, "logprobs", "logprobs"),
        (
            COMPLETIONS,
            {"prompt": "a", "logprobs": 1, "echo": True},
            "prompt_logprobs",
            "echo",
        ),
        (COMPLETIONS, {"prompt": "a", "prompt_logprobs": 1}, "prompt_logprobs", None),
        (COMPLETIONS, {"prompt": "a"}, "logit_bias", None),
    ],
)
async def test_unsupported_field_has_the_name_of_the_request(make, path, fields, param, told):
    api = make()
    api.backend.check_error = FieldFault(param, " is not supported")
    status, body = await api.post(path, {**(chat(text("a")) if path == V1 else {}), **fields})
    told = told or param
    assert (status, body["error"]["param"]) == (400, told)
    words = "echo with logprobs" if told == "echo" else told
    assert body["error"]["message"] == f"{words} is not supported"


async def test_vision_model_completes_prompts_without_images(make):
    api = make()
    for prompt in ("a", [98, 99]):
        await api.answer(COMPLETIONS, {"model": "fake", "prompt": prompt})
    first, second = api.backend.submitted
    assert (first.prompt.text, list(first.prompt.images)) == ("a", [])
    assert (second.prompt, list(second.prompt_token_ids)) == (None, [98, 99])
    status, body = await api.post(COMPLETIONS, {"model": "fake", "prompt": ["a", TAG(0)]})
    assert (status, body["error"]["param"]) == (400, "prompt[1]")
    status, body = await api.post("/v3/completions", {"model": "fake", "prompt": "a"})
    assert (status, body) == (
        400,
        {"error": "a model that takes images does not support completions: use chat completions"},
    )


def test_image_tokens_are_found_in_the_configuration_of_a_model():
    config = {"image_token_id": 65, "video_token_index": 66, "boi_token_index": 65, "x": 67}
    info = ModelInfo("m", 0, 10, 257, frozenset(), config={**config, "audio_token_id": None})
    loader = ImageLoader(MediaConfig(shrink_images_to=900))
    images = loader.input_of(info, ByteTokenizer(), {"max_pixels": 500})
    assert images.reserved == ("A", "B")
    assert images.fetch.keywords["bound"] == PixelBound(500)


# A model's chat settings, from its directory and the operator's flags.


def test_formats_are_detected_from_the_template():
    chat = load_chat(DEMO_MODEL, ChatConfig())
    assert chat.template is not None
    assert chat.tool_format is not None
    assert chat.reasoning_format is not None
    assert (chat.tool_format.name, chat.reasoning_format.name) == ("hermes3", "qwen3")
    assert chat.tags == {"<tool_call>", "</tool_call>", "<think>", "</think>"}


@pytest.mark.slow
def test_operator_selects_the_parsers():
    chat = load_chat(DEMO_MODEL, ChatConfig(tool_parser="mistral", reasoning_parser="none"))
    assert chat.tool_format is not None
    assert (chat.tool_format.name, chat.reasoning_format) == ("mistral", None)
    chat = load_chat(DEMO_MODEL, ChatConfig(tool_parser="none", reasoning_parser="none"))
    assert chat.tags == frozenset()


@pytest.mark.parametrize("kind", ["tool", "reasoning"])
def test_unknown_parser_is_a_configuration_error(kind):
    with pytest.raises(ConfigurationError, match=f"the {kind} parser must be .* not 'morse'"):
        load_chat(DEMO_MODEL, ChatConfig(**{f"{kind}_parser": "morse"}))


def test_operator_replaces_the_template(tmp_path: Path):
    file = tmp_path / "mine.jinja"
    file.write_text("{{ messages[0].content }}<|python_tag|>")
    chat = load_chat(DEMO_MODEL, ChatConfig(chat_template=file))
    assert chat.template is not None
    assert chat.tool_format is not None
    assert chat.template.render(MESSAGES) == "Hi<|python_tag|>"
    assert chat.tool_format.name == "llama3"
    file.write_text("{% if %}")
    with pytest.raises(ConfigurationError, match="malformed"):
        load_chat(DEMO_MODEL, ChatConfig(chat_template=file))
    with pytest.raises(ConfigurationError, match="nowhere"):
        load_chat(DEMO_MODEL, ChatConfig(chat_template=tmp_path / "nowhere"))


def test_model_without_a_template_has_no_formats(tmp_path: Path):
    chat = load_chat(tmp_path, ChatConfig())
    assert (chat.template, chat.tool_format, chat.reasoning_format) == (None, None, None)
    assert chat.missing == "has no chat template"


def test_broken_chat_template_is_logged(tmp_path: Path, caplog):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{% if %}"}))
    with caplog.at_level(logging.WARNING):
        chat = load_chat(tmp_path, ChatConfig())
    assert chat.template is None
    assert "malformed" in chat.missing
    assert "chats are refused" in caplog.text


def test_known_encoder_has_task_and_capability():
    for task, capability in ((Task.EMBEDDINGS, "embedding"), (Task.RERANK, "rerank")):
        served = served_encoder(task)
        known = KnownModel.of(served)
        assert (known.task, known.capabilities, known.max_model_len) == (task, (capability,), 64)
        served.tokenizing.close()


# The models in memory and the rules of eviction, also under random operations.


LOAD, UNLOAD = MoveKind.LOAD, MoveKind.UNLOAD


def residency(*names: str, size: int = 10, **config: float) -> Residency:
    models = Residency(ResidencyConfig(**config))  # type: ignore[arg-type]
    for name in names:
        models.add(name, size)
    return models


def load(models: Residency, name: str, now: float) -> None:
    """Loads a model for a request, which then uses it."""
    models.wait(name, now)
    assert models.next_move(now) == Move(LOAD, name)
    assert models.next_move(now) is None  # one at a time
    models.loaded(now)
    models.stop_waiting(name)
    assert models.acquire(name, now)


@pytest.mark.parametrize("config", [{"max_loaded_models": 2}, {"model_memory": 25}])
def test_idle_model_used_least_recently_makes_room(config: dict[str, int]) -> None:
    models = residency("a", "b", "c", **config)
    load(models, "a", 1)
    load(models, "b", 2)
    models.wait("c", 3)
    assert models.next_move(3) is None  # both are in use
    models.release("b", 4)
    models.release("a", 5)
    assert models.next_move(5) == Move(UNLOAD, "b")
    assert not models.acquire("b", 5)
    models.unloaded()
    assert models.next_move(5) == Move(LOAD, "c")
    models.check()


def test_waiting_request_gets_its_turn_before_later_uses_of_a_busy_model() -> None:
    models = residency("a", "b", max_loaded_models=1)
    load(models, "a", 0)
    models.wait("b", 1)
    assert models.next_move(1) is None
    assert models.acquire("a", 2)  # others continue meanwhile
    at = models.wake_at(2)
    assert at is not None
    assert at > 2
    assert models.next_move(at) is None
    assert not models.acquire("a", at)  # now it is the other model's turn
    models.release("a", at)
    assert models.next_move(at) is None
    models.release("a", at)
    assert models.next_move(at) == Move(UNLOAD, "a")


def test_failed_load_is_tried_again_at_growing_intervals() -> None:
    models = residency("a", max_loaded_models=1)
    now, waits = 0.0, []
    for _ in range(12):
        models.wait("a", now)
        assert models.next_move(now) == Move(LOAD, "a")
        models.failed(now)
        models.stop_waiting("a")
        waits.append(models.seconds_to_retry("a", now))
        models.wait("a", now)
        assert models.next_move(now) is None
        assert models.wake_at(now) == now + waits[-1]
        models.stop_waiting("a")
        now += waits[-1]
        models.check()
    assert waits[:3] == [2, 4, 8]
    assert waits[-1] == 300
    models.wait("a", now)
    assert models.next_move(now) == Move(LOAD, "a")
    models.loaded(now)
    assert models.seconds_to_retry("a", now) == 0


def test_idle_model_leaves_after_its_time_if_there_is_one() -> None:
    stays = residency("a")
    load(stays, "a", 0)
    stays.release("a", 5)
    assert stays.seconds_to_unload("a", 6) is None
    models = residency("a", idle_unload=10)
    load(models, "a", 0)
    assert models.wake_at(5) is None
    assert models.seconds_to_unload("a", 5) == 10
    models.release("a", 5)
    assert models.wake_at(6) == 15
    assert models.seconds_to_unload("a", 6) == 9
    assert models.seconds_to_unload("a", 16) == 0
    assert models.next_move(14.9) is None
    assert models.next_move(15) == Move(UNLOAD, "a")


def test_removed_model_leaves_after_its_requests() -> None:
    models = residency("a", "b")
    load(models, "a", 0)
    models.remove("a")
    models.remove("b")
    assert "b" not in models
    assert not models.acquire("a", 1)
    assert models.next_move(1) is None
    models.add("a", 5)  # it is used again before it is unloaded
    models.release("a", 2)
    assert models.next_move(2) == Move(UNLOAD, "a")
    models.unloaded()
    assert models["a"].state is ModelState.UNLOADED
    models.remove("a")
    assert "a" not in models


def test_leaving_model_can_be_asked_to_leave_again() -> None:
    models = residency("a")
    load(models, "a", 0)
    models.release("a", 1)
    models.request_unload("a")
    assert models.next_move(2) == Move(UNLOAD, "a")
    models.request_unload("a")
    assert models["a"].leaves
    models.unloaded()
    models.request_unload("a")
    assert not models["a"].leaves
    models.check()


def group(name: str, idle_unload: float | None = None) -> ModelResidency:
    return ModelResidency(idle_unload, name)


def grouped(**groups: ModelResidency) -> Residency:
    models = residency(idle_unload=60)
    for name, policy in groups.items():
        models.add(name, 10, policy)
    return models


def test_models_of_a_group_are_loaded_and_unloaded_together() -> None:
    models = grouped(a=group("x"), b=group("x"), other=NO_GROUP)
    load(models, "a", 0)
    assert models.next_move(1) == Move(LOAD, "b")
    models.loaded(1)
    assert models.next_move(1) is None
    models.release("a", 2)
    assert models.next_move(61.5) is None  # b is idle for 60 s, its group is not
    assert [models.seconds_to_unload(name, 2) for name in ("a", "b")] == [60, 60]
    for name in ("a", "b"):
        assert models.next_move(62) == Move(UNLOAD, name)
        models.unloaded()
    assert models.next_move(62) is None
    load(models, "b", 63)
    models.release("b", 63)
    assert models.next_move(63) == Move(LOAD, "a")
    models.loaded(63)
    models.request_unload("b")
    assert [model.name for model in models if model.leaves] == ["a", "b"]


def test_model_of_another_group_waits_until_the_loaded_group_is_unloaded() -> None:
    models = grouped(a=group("x"), b=group("x"), c=group("y"), other=NO_GROUP)
    load(models, "a", 0)
    load(models, "b", 0)
    load(models, "other", 0)
    models.wait("c", 1)
    models.release("b", 2)
    models.release("other", 2)
    assert models.next_move(2) == Move(UNLOAD, "b")
    models.unloaded()
    assert models.next_move(3) is None  # a is in use
    assert models.next_move(7) is None
    assert models["a"].leaves
    models.release("a", 8)
    assert models.next_move(8) == Move(UNLOAD, "a")
    models.unloaded()
    assert models.next_move(8) == Move(LOAD, "c")
    models.check()


def test_group_of_several_idle_times_leaves_after_the_longest() -> None:
    models = grouped(a=group("x", 30), b=group("x", 90))
    for name in ("a", "b"):
        load(models, name, 0)
        models.release(name, 0)
    assert models.next_move(89) is None
    for name in ("a", "b"):
        assert models.next_move(90) == Move(UNLOAD, name)
        models.unloaded()


def test_busy_models_of_another_group_all_leave_for_one_that_waits() -> None:
    models = grouped(a=group("x"), b=group("x"), c=group("y"))
    for name in ("a", "b"):
        load(models, name, 0)
    models.wait("c", 1)
    assert models.next_move(7) is None
    assert [model.name for model in models if model.leaves] == ["a", "b"]


def test_groups_exclude_nothing_where_all_models_stay_loaded() -> None:
    models = residency()
    for name in ("x", "y"):
        models.add(name, 10, group(name), is_loaded=name == "x")
    assert not models.loads_on_demand
    models.wait("y", 1)
    assert models.next_move(1) == Move(LOAD, "y")


def test_permanent_models_make_no_room_and_do_not_count() -> None:
    models = residency("a", "b", max_loaded_models=1, idle_unload=60)
    models.add("stays", 10, group("permanent", 1))
    for name in ("stays", "a"):
        load(models, name, 0)
        models.release(name, 0)
    models.wait("b", 1)
    assert models.next_move(1) == Move(UNLOAD, "a")
    models.unloaded()
    assert models.next_move(1) == Move(LOAD, "b")
    models.loaded(1)
    models.stop_waiting("b")
    assert models.seconds_to_unload("stays", 1) is None
    assert models.next_move(1000) == Move(UNLOAD, "b")
    models.check()


def test_idle_time_of_a_model_replaces_that_of_all() -> None:
    models = residency("usual", idle_unload=60)
    models.add("short", 10, group("", 10))
    models.add("never", 10, group("", 0))
    for name in ("usual", "short", "never"):
        load(models, name, 0)
        models.release(name, 0)
    assert models.wake_at(0) == 10
    assert models.next_move(10) == Move(UNLOAD, "short")
    models.unloaded()
    assert models.next_move(60) == Move(UNLOAD, "usual")
    models.unloaded()
    assert models.wake_at(60) is None
    assert residency().loads_on_demand is False
    assert models.loads_on_demand is True


@pytest.mark.parametrize("seed", range(20))
def test_random_operations_keep_limits_and_serve_all_waiters(seed: int) -> None:
    """No model in use is unloaded, limits hold, and every waiting request gets its model."""
    rng = random.Random(seed)
    config = {"max_loaded_models": rng.choice([1, 2]), "idle_unload": rng.choice([0, 30])}
    models = residency(**config)
    groups = dict.fromkeys("abcd", NO_GROUP)
    if rng.random() < 0.5:
        config["idle_unload"] = 30
        groups = {
            name: group(of) for name, of in zip("abcd", ["x", "x", "y", "permanent"], strict=True)
        }
    models = residency(**config)
    for name in "abcd":
        models.add(name, 10, groups[name])
    now, move = 0.0, None
    uses: dict[str, int] = dict.fromkeys("abcd", 0)

    def finish() -> None:
        if move.kind is UNLOAD:
            assert not uses[move.name]
            models.unloaded()
        elif rng.random() < 0.2:
            models.failed(now)
        else:
            models.loaded(now)
            if not models[move.name].leaves:
                while models[move.name].num_waiting:
                    models.stop_waiting(move.name)
                    assert models.acquire(move.name, now)
                    uses[move.name] += 1

    for _ in range(400):
        now += rng.random()
        name = rng.choice("abcd")
        kind = rng.randrange(8)
        if kind < 3:
            if models.acquire(name, now):
                uses[name] += 1
            else:
                models.wait(name, now)
        elif kind < 5 and uses[name]:
            uses[name] -= 1
            models.release(name, now)
        elif kind == 5 and models[name].num_waiting:
            models.stop_waiting(name)
        elif kind == 6 and rng.random() < 0.3:
            rng.choice([models.request_unload, models.retry_now])(name)
        elif kind == 7 and rng.random() < 0.3:
            models.change(name, 10, groups[name])
        if move is not None and rng.random() < 0.5:
            finish()
            move = None
        move = models.next_move(now) or move
        models.check()
        assert {model.name: model.num_uses for model in models} == uses

    for _ in range(1000):  # no more requests are sent
        now = max(now + 0.01, models.wake_at(now) or 0)
        if move is not None:
            finish()
            move = None
        for name in "abcd":
            while uses[name]:
                uses[name] -= 1
                models.release(name, now)
        move = models.next_move(now)
    assert not any(model.num_waiting for model in models)


# Models are found by their names.


def test_single_model_takes_any_name_if_configured():
    [known, _] = several_models()[0].known
    models = ServedModels()
    models.set_known([known])
    with pytest.raises(ModelNotFound, match=r"'three' not found: this server has `one`$"):
        models.find("three", OLLAMA)
    models.takes_any_name = True
    assert models.find("three", OLLAMA) is known
    with pytest.raises(ModelNotFound):
        models.find("three", OLLAMA, is_exact=True)


def test_model_is_found_by_its_name_alias_or_tag():
    models, _ = several_models()
    assert [model.info.name for model in models] == ["one", "two"]
    for name, expected in ((None, "one"), ("uno", "one"), ("org/uno", "one"), ("two", "two"),
                           ("uno:latest", "one")):  # fmt: skip
        assert models.find(name, OPENAI).name == expected
    with pytest.raises(ModelNotFound, match="model 'three:latest' not found"):
        models.find("three:latest", OLLAMA)
    with pytest.raises(ModelNotFound, match=r"does not exist\. This server has `one`, `two`\.$"):
        models.find("three", OPENAI)
    models.takes_any_name = True
    with pytest.raises(ModelNotFound):  # the name is ambiguous
        models.find("three", OPENAI)
    names = [*"abcdefghij", "x" * 999]
    assert len(str(model_not_found("x" * 999, OPENAI, names))) < 500
