"""OpenAI's client against the API over fakes, through real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import openai
import pytest
from openai.types.responses import Response
from pydantic import BaseModel

from fastovms.api.dialect import render_error
from fastovms.config import HttpConfig
from fastovms.http.routing import Dispatcher
from fastovms.http.server import HttpServer


class City(BaseModel):
    name: str
    size: int


@pytest.fixture
async def connect(make) -> AsyncIterator[Callable[..., object]]:
    """Makes clients of an API that answers with a script."""
    async with AsyncExitStack() as stack:

        async def start(script="Hello!", prefix: str = "/v1", **options):
            api = make(script, **options)
            config = HttpConfig(port=0, drain_grace=0.0)
            server = HttpServer(config, Dispatcher(api.router, render_error))
            await server.start()
            stack.push_async_callback(server.close)
            client = openai.AsyncOpenAI(
                base_url=server.addresses[0] + prefix, api_key="none", max_retries=0
            )
            await stack.enter_async_context(client)
            client.api = api
            return client

        yield start


@pytest.mark.slow
@pytest.mark.parametrize("prefix", ["/v1", "/v3"])
async def test_created_response_validates_against_the_client_model(connect, prefix):
    client = await connect(prefix=prefix)
    response = await client.responses.create(model="fake", input="Hi")
    assert response.output_text == "Hello!"
    assert response.status == "completed"
    assert response.usage.total_tokens == 13
    assert response.usage.input_tokens_details.cached_tokens == 0
    Response.model_validate(response.to_dict(), strict=True)


@pytest.mark.slow
async def test_stream_helper_accumulates_the_final_response(connect):
    client = await connect("<think>hm</think>Hello!")
    async with client.responses.stream(model="fake", input="Hi") as stream:
        text = ""
        async for event in stream:
            if event.type == "response.output_text.delta":
                text += event.delta
                assert event.snapshot == text
        final = await stream.get_final_response()
    assert text == final.output_text == "Hello!"
    assert [item.type for item in final.output] == ["reasoning", "message"]
    assert final.output[0].content[0].text == "hm"


async def test_parse_constrains_and_decodes_the_text_format(connect):
    client = await connect('{"name":"Paris","size":2}')
    parsed = await client.responses.parse(model="fake", input="City?", text_format=City)
    assert parsed.output_parsed == City(name="Paris", size=2)
    assert parsed.text.format.name == "City"
    grammar = client.api.backend.submitted[-1].params.grammar
    assert '"required":["name","size"]' in grammar.source


@pytest.mark.slow
async def test_client_manages_conversations_and_their_items(connect):
    client = await connect()
    conversation = await client.conversations.create(
        items=[{"type": "message", "role": "user", "content": "A"}], metadata={"topic": "x"}
    )
    updated = await client.conversations.update(conversation.id, metadata={"topic": "y"})
    assert (await client.conversations.retrieve(conversation.id)) == updated
    response = await client.responses.create(model="fake", input="B", conversation=conversation.id)
    assert response.conversation.id == conversation.id
    items = [item async for item in client.conversations.items.list(conversation.id, order="asc")]
    assert [item.content[0].text for item in items] == ["A", "B", "Hello!"]
    added = await client.conversations.items.create(
        conversation.id, items=[{"role": "user", "content": "C"}]
    )
    [item] = added.data
    found = await client.conversations.items.retrieve(item.id, conversation_id=conversation.id)
    assert found == item
    await client.conversations.items.delete(item.id, conversation_id=conversation.id)
    deleted = await client.conversations.delete(conversation.id)
    assert deleted.deleted
    with pytest.raises(openai.NotFoundError):
        await client.conversations.retrieve(conversation.id)
