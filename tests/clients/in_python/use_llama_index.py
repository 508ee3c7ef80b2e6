"""Uses LlamaIndex's `OpenAILike`: texts, streams, chats, tools, structured answers; and an index of
vectors."""

from __future__ import annotations

from llama_index.core import Document, VectorStoreIndex
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from person import Person


def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"sunny in {city}"


def main(url: str, name: str) -> None:
    common = {"model": name, "api_base": url, "api_key": "none", "temperature": 0}
    text = OpenAILike(**common, max_tokens=20)
    whole = text.complete("Once upon a time").text
    assert whole
    assert list(text.stream_complete("Once upon a time"))[-1].text == whole

    chat = OpenAILike(**common, max_tokens=300, is_chat_model=True, is_function_calling_model=True)
    messages = [ChatMessage(role="user", content="The weather in Paris?")]
    answer = chat.chat(messages).message.content
    assert answer
    assert "".join(part.delta or "" for part in chat.stream_chat(messages)) == answer

    tools = [FunctionTool.from_defaults(get_weather)]
    called = chat.chat_with_tools(tools, user_msg=messages[0], tool_required=True)
    (call,) = chat.get_tool_calls_from_response(called)
    assert call.tool_name == "get_weather"
    assert set(call.tool_kwargs) == {"city"}
    assert isinstance(chat.as_structured_llm(Person).complete("Who is it?").raw, Person)

    retrieve(url)


def retrieve(url: str) -> None:
    """Finds documents by their vectors; a text is nearest to itself."""
    embedding = OpenAILikeEmbedding(model_name="encoder", api_base=url, api_key="none")
    texts = ["The sky is blue.", "Paris is the capital of France.", "Bread is made of flour."]
    index = VectorStoreIndex.from_documents(
        [Document(text=text) for text in texts], embed_model=embedding
    )
    for text in texts:
        (found,) = index.as_retriever(similarity_top_k=1).retrieve(text)
        assert found.text == text
