"""Images in chats, over fakes: what is refused, and what the backend is given."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from fastovms.api.serving.images import ImageInput
from fastovms.config.api_config import MediaConfig
from fastovms.errors import FieldFault, Overloaded
from fastovms.media.decode import PixelBound
from fastovms.media.loader import ImageLoader
from fastovms.params import ModelInfo, Refusal
from fastovms.text.templating.chat_template import ChatTemplate
from tests.api.chat_models import MESSAGES, chat_model
from tests.fakes import ByteTokenizer, FakeStream, model_info
from tests.media.pictures import BLUE, RED, png

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
        images = ImageInput(ImageLoader(media or MediaConfig()), ("<|image_pad|>",))
        model = model_info(max_model_len=2000, takes_images=True)
        return make_api(script, model=model, chat=chat_model(), images=images, **options)

    return make_vision


def error(body: dict[str, Any]) -> str:
    found = body["error"]
    return found if isinstance(found, str) else found["message"]


def given(api) -> tuple[str, list[list[int]]]:
    """The text and the colours of the images that the backend got."""
    prompt = api.backend.submitted[-1].prompt
    return prompt.text, [picture[0, 0].tolist() for picture in prompt.images]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([image(), text("what?")], f"{TAG(0)}what?"),
        ([text("what?"), image()], f"what?{TAG(0)}"),
        ([text("a"), text("b"), image(), text("c")], f"a\nb{TAG(0)}c"),
        ([image(), image(BLUE)], TAG(0) + TAG(1)),
        ([text("no image")], "no image"),
    ],
)
async def test_parts_in_order(make, parts, expected):
    api = make()
    for path in (V1, V3):
        status, body = await api.post(path, chat(*parts))
        assert status == 200, body
        found, colors = given(api)
        assert found == f"u:{expected};>"
        assert colors == [list(RED), list(BLUE)][: len(colors)]
        assert len(colors) == sum(part["type"] == "image_url" for part in parts)


async def test_the_text_of_a_prompt_without_images(make):
    api = make()
    await api.post(V1, {"model": "fake", "messages": MESSAGES})
    assert given(api) == ("u:Hi;>", [])
    assert bytes(api.backend.submitted[-1].prompt_token_ids).decode() == "u:Hi;>"


async def test_tags_are_no_tokens_of_the_text(make):
    api = make()
    await api.post(V1, chat(image(), text("what?")))
    assert bytes(api.backend.submitted[-1].prompt_token_ids).decode() == "u:what?;>"


async def test_usage_counts_the_tokens_of_images(make):
    api = make(tokens_per_step=2)
    api.backend.num_prompt_tokens = 321
    _, body = await api.post(V1, chat(image(), n=2))
    assert body["usage"]["prompt_tokens"] == 321
    assert body["usage"]["total_tokens"] == 321 + body["usage"]["completion_tokens"]
    events = await api.stream(V1, chat(image(), stream_options={"include_usage": True}))
    assert events[-2]["usage"]["prompt_tokens"] == 321
    families = {metric.name: metric for metric in api.registry.collect()}
    [count, total] = [
        sample.value
        for sample in families["fastovms_request_prompt_tokens"].samples
        if sample.name.endswith(("_count", "_sum"))
    ]
    assert (count, total) == (2, 642)


@pytest.mark.parametrize("path", [V1, V3])
@pytest.mark.parametrize("stream", [False, True])
async def test_what_only_the_backend_can_tell_is_a_fault_of_the_request(make, path, stream):
    api = make()
    api.backend.refusal = Refusal("too many tokens", "prompt", "context_length_exceeded")
    sent = FakeStream()
    response = await api.call("POST", path, chat(image(), stream=stream), sent)
    assert response is not None
    assert response.status == 400
    assert b"too many tokens" in response.body
    assert not sent.started


async def test_what_the_backend_cannot_do_is_refused_before_images_are_loaded(make):
    api = make()
    api.backend.check_error = FieldFault("logit_bias", " is not supported")
    status, body = await api.post(V1, chat({"type": "image_url", "image_url": {"url": "data:,"}}))
    assert (status, body["error"]["param"]) == (400, "logit_bias")


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
        ({"type": "input_image", "file_id": "file-1"}, ".file_id", "there are no files here"),
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
            "fetches nothing from localhost",
        ),
        (
            {"type": "image_url", "image_url": {"url": "/etc/passwd"}},
            ".image_url.url",
            "reads no local files",
        ),
    ],
)
async def test_bad_parts(make, part, param, message):
    api = make()
    status, body = await api.post(V1, chat(part))
    assert status == 400
    assert body["error"]["param"] == PLACE + param
    assert message in body["error"]["message"]
    status, body = await api.post(V3, chat(part))
    assert status == 400
    assert PLACE + param in error(body)
    assert not api.backend.submitted


async def test_a_url_in_place_of_an_object(make):
    api = make()
    part = {"type": "image_url", "image_url": data_url(png())}
    status, _ = await api.post(V1, chat(part))
    assert status == 200
    status, body = await api.post(V3, chat(part))
    assert (status, error(body)) == (
        400,
        f"{PLACE}.image_url must be an object, not {body['error'].rpartition(', not ')[2]}",
    )
    for path in (V1, V3):
        status, _ = await api.post(path, chat({**part, "type": "input_image"}))
        assert status == 200


@pytest.mark.parametrize("detail", ["auto", "low", "high", "original", None])
async def test_detail_is_accepted(make, detail):
    status, _ = await make().post(V1, chat(image(detail=detail)))
    assert status == 200


async def test_nor_through_other_fields(make):
    api = make()
    for place, fields in {
        "documents[0].title": {"documents": [{"title": TAG(0)}]},
        "chat_template_kwargs.style": {"chat_template_kwargs": {"style": TAG(0)}},
    }.items():
        status, body = await api.post(V1, chat(image(), **fields))
        assert (status, body["error"]["param"]) == (400, place)
    tools = [{"type": "function", "function": {"name": TAG(0)}}]
    status, _ = await api.post(V1, chat(image(), tools=tools))
    assert status == 400


async def test_more_images_than_are_allowed(make):
    api = make(media=MediaConfig(max_images=2))
    status, body = await api.post(V1, chat(image(), image(), image()))
    assert (status, body["error"]["param"]) == (400, "messages[0].content[2].image_url.url")


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
async def test_images_are_counted_before_anything_is_done_for_them(
    make, monkeypatch, path, body, place
):
    def render(self, *arguments, **options):
        raise AssertionError("the prompt is made though an image is one too many")

    monkeypatch.setattr(ChatTemplate, "render", render)
    status, answer = await make(media=MediaConfig(max_images=2)).post(path, body)
    assert (status, error(answer).partition(" is ")[0]) == (400, place)


async def test_no_memory_for_images_is_overload(make, monkeypatch):
    async def load(self, sources, bound):
        raise Overloaded("too many images are being read")

    monkeypatch.setattr(ImageLoader, "load", load)
    status, _ = await make().post(V1, chat(image()))
    assert status == 429


async def test_a_text_model_takes_no_images(make_api):
    api = make_api(model=model_info(max_model_len=500), chat=chat_model())
    for path in (V1, V3):
        status, body = await api.post(path, chat(image()))
        assert status == 400
        assert "but this model takes only text" in error(body)
    status, _ = await api.post(V1, chat(text(f"{TAG(0)} is a text like any other")))
    assert status == 200
    assert api.backend.submitted[-1].prompt is None


async def test_tokens_of_images_are_not_counted(make):
    api = make()
    status, body = await api.post("/tokenize", chat(text("a"), image()))
    assert (status, body["error"]["param"]) == (400, "messages[0].content[1].image_url.url")
    assert "only known when they are read" in error(body)
    status, _ = await api.post("/tokenize", chat(text("a")))
    assert status == 200


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
async def test_what_the_backend_cannot_do_is_named_as_it_was_asked(make, path, fields, param, told):
    api = make()
    api.backend.check_error = FieldFault(param, " is not supported")
    status, body = await api.post(path, {**(chat(text("a")) if path == V1 else {}), **fields})
    told = told or param
    assert (status, body["error"]["param"]) == (400, told)
    words = "echo with logprobs" if told == "echo" else told
    assert body["error"]["message"] == f"{words} is not supported"


async def test_completions_of_a_vision_model(make):
    api = make()
    for prompt in ("a", [98, 99]):
        status, _ = await api.post(COMPLETIONS, {"model": "fake", "prompt": prompt})
        assert status == 200
    first, second = api.backend.submitted
    assert (first.prompt.text, list(first.prompt.images)) == ("a", [])
    assert (second.prompt, list(second.prompt_token_ids)) == (None, [98, 99])
    status, body = await api.post(COMPLETIONS, {"model": "fake", "prompt": ["a", TAG(0)]})
    assert (status, body["error"]["param"]) == (400, "prompt[1]")
    status, body = await api.post("/v3/completions", {"model": "fake", "prompt": "a"})
    assert (status, body) == (
        400,
        {"error": "completions are not for a model that takes images; chats are"},
    )


def test_the_models_own_tags_are_found_in_its_configuration():
    config = {"image_token_id": 65, "video_token_index": 66, "boi_token_index": 65, "x": 67}
    info = ModelInfo("m", 0, 10, 257, frozenset(), config={**config, "audio_token_id": None})
    images = ImageInput.of(
        info, ByteTokenizer(), ImageLoader(MediaConfig(shrink_images_to=900)), {"max_pixels": 500}
    )
    assert images.reserved == ("A", "B")
    assert images.bound == PixelBound(500)
