"""Tests of images in responses with fakes: decoded, stored, repeated later, and dropped."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from fastovms.parts.media.loader import ImageLoader
from fastovms.server_config import MediaConfig
from tests.api.chat_models import chat_model, prompt_of
from tests.api.responses.conftest import V1, V3, ask
from tests.api.test_served import TAG, given
from tests.fakes import FakeStream, model_info
from tests.media.pictures import BLUE, RED, png


def image(color: tuple[int, int, int] = RED, **members: Any) -> dict[str, Any]:
    url = "data:image/png;base64," + base64.b64encode(png(color=color)).decode()
    return {"type": "input_image", "image_url": url, **members}


def text(value: str) -> dict[str, Any]:
    return {"type": "input_text", "text": value}


def said(*parts: object, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": list(parts)}


def body(*items: object, **fields: object) -> dict[str, Any]:
    return {"model": "fake", "input": list(items), **fields}


@pytest.fixture
def make_vision(make_api, make_state):
    def make(script="Hello!", *, context=2000, media=None, **options):
        images = ImageLoader(media or MediaConfig()).input(("<|image_pad|>",))
        model = model_info(max_model_len=context, takes_images=True)
        options.setdefault("state", make_state())
        return make_api(script, model=model, chat=chat_model(), images=images, **options)

    return make


@pytest.mark.parametrize("path", [V1, V3])
async def test_images_of_messages_and_tool_outputs_reach_the_backend(make_vision, path):
    api = make_vision()
    items = [
        said(text("look"), image()),
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [image(BLUE), text("seen")]},
        said(image(), text("and?")),
    ]
    await api.answer(path, body(*items))
    found, colors = given(api)
    assert found == f"u:look{TAG(0)};a:{{f {{}}}};t:{TAG(1)}seen;u:{TAG(2)}and?;>"
    assert colors == [list(RED), list(BLUE), list(RED)]


async def test_image_url_may_be_an_object(make_vision):
    api = make_vision()
    part = {"type": "input_image", "image_url": {"url": image()["image_url"]}}
    for path in (V1, V3):
        await api.answer(path, body(said(part)))
        assert given(api)[0] == f"u:{TAG(0)};>"


async def test_stored_images_reach_the_backend_again(make_vision):
    api = make_vision()
    _, first = await ask(api, "POST", V1, body(said(text("look"), image(detail="low"))))
    _, kept = await ask(api, "GET", f"{V1}/{first['id']}/input_items")
    assert kept["data"][0]["content"] == [text("look"), image(detail="low")]
    status, _ = await ask(
        api, "POST", V1, body(said(image(BLUE)), previous_response_id=first["id"])
    )
    assert status == 200
    found, colors = given(api)
    assert found == f"u:look{TAG(0)};a:Hello!;u:{TAG(1)};>"
    assert colors == [list(RED), list(BLUE)]


async def test_model_without_vision_refuses_new_images_and_notes_older_ones(
    make_vision, make_api, make_state
):
    state = make_state()
    _, first = await ask(make_vision(state=state), "POST", V1, body(said(image())))
    other = make_api(model=model_info(max_model_len=999), chat=chat_model(), state=state)
    note, asked = "[image: this model cannot read it]", said(text("and?"))
    status, _ = await ask(
        other, "POST", V1, body(asked, previous_response_id=first["id"], store=False)
    )
    assert (status, prompt_of(other)) == (200, f"u:{note};a:Hello!;u:and?;>")
    assert await other.refused(V1, body(said(image()))) == "input[0].content[0]"
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": [image()]}
    pdf = {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,"}
    history = body(said(image(), pdf), call, output)
    response = await other.call("POST", V1, history, FakeStream())
    assert (
        prompt_of(other)
        == f"u:{note}\n[file a.pdf: this model cannot read it];a:{{f {{}}}};t:{note};>"
    )
    assert (
        "cannot read input[0].content[0], input[0].content[1], input[2].output[0]:"
        in dict(response.headers)["Warning"]
    )


async def test_conversation_keeps_images_whatever_the_models(make_vision, make):
    for api in (make_vision(), make()):
        _, made = await ask(api, "POST", "/v1/conversations", {"items": [said(image())]})
        assert made["object"] == "conversation"


async def test_truncation_drops_messages_with_their_images(make_vision):
    api = make_vision(context=150, media=MediaConfig(max_images=2))
    long = "x" * 140
    items = [said(image(), text(long)), said(image(BLUE), text("b")), said(text("c"), image())]
    await api.answer(V1, body(*items, truncation="auto"))
    found, colors = given(api)
    assert found == f"u:{TAG(0)}b;u:c{TAG(1)};>"
    assert colors == [list(BLUE), list(RED)]
    items = [*items[1:], said(image())]
    assert await api.refused(V1, body(*items, truncation="auto")) == "input[2].content[0].image_url"


PLACE = "input[0].content[1]"


@pytest.mark.parametrize(
    ("part", "param", "message"),
    [
        ({"type": "input_image"}, ".image_url", "must be an object or a string, not null"),
        ({"type": "input_image", "image_url": {}}, ".image_url.url", "must be a string"),
        ({"type": "input_image", "file_id": "f"}, ".file_id", "include the data itself"),
        (image(detail="huge"), ".detail", "detail must be one of"),
        ({"type": "input_file"}, "", "takes only text and parts of type image_url or input_image"),
        ({"type": "input_image", "image_url": "/x"}, ".image_url", "does not read local files"),
    ],
)
async def test_invalid_image_part_is_refused_by_its_place(make_vision, part, param, message):
    api = make_vision()
    status, answer = await ask(api, "POST", V1, body(said(text("see"), part)))
    assert status == 400
    assert answer["error"]["param"] == PLACE + param
    assert message in answer["error"]["message"]
    assert not api.backend.submitted


async def test_image_tags_in_texts_are_refused(make_vision):
    api = make_vision()
    for place, items, fields in (
        ("input[0].content[1].text", [said(image(), text(TAG(0)))], {}),
        ("input[1].content[0].text", [said(image()), said(text("<|image_pad|>"))], {}),
        ("instructions", [said(image())], {"instructions": TAG(0)}),
    ):
        status, answer = await ask(api, "POST", V1, body(*items, **fields))
        assert (status, answer["error"]["param"]) == (400, place)
        assert answer["error"]["message"].startswith(f"{place} must not contain <")
    status, answer = await ask(api, "POST", V1, {"model": "fake", "input": TAG(0)})
    assert (status, answer["error"]["param"]) == (400, "input")
    for asked, param in (
        ({"input": "hi", "instructions": TAG(0)}, "instructions"),
        ({"input": [said(image())]}, "input[0].content[0].image_url"),
    ):
        assert await api.refused(f"{V1}/input_tokens", {"model": "fake", **asked}) == param
