"""Uses langchain-openai: texts, streams, tools and structured answers of `ChatOpenAI`, and a
retriever over the vectors of `OpenAIEmbeddings`. Runs the agent of `examples/`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from person import Person


@tool
def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"sunny in {city}"


@tool("get_weather")
def temperature(city: str) -> str:
    """Get the current weather in a city"""
    return '{"temperature": 18, "condition": "sunny"}'


def main(url: str, name: str) -> None:
    model = ChatOpenAI(base_url=url, api_key="none", model=name, temperature=0, max_tokens=40)
    answer = model.invoke("Hello")
    assert answer.content
    assert answer.usage_metadata["output_tokens"] <= 40

    parts = list(model.stream("Hello", stream_usage=True))
    assert "".join(part.content for part in parts) == answer.content
    usages = [part.usage_metadata for part in parts if part.usage_metadata]
    assert sum(usage["output_tokens"] for usage in usages) == answer.usage_metadata["output_tokens"]

    told = ChatOpenAI(base_url=url, api_key="none", model=name, logprobs=True, max_tokens=20)
    answer = told.invoke("What is 7 + 5?")
    tokens = answer.response_metadata["logprobs"]["content"]
    assert "".join(token["token"] for token in tokens) == answer.content
    several = ChatOpenAI(base_url=url, api_key="none", model=name, n=2, max_tokens=20)
    assert len(several.generate([[HumanMessage("Hello")]]).generations[0]) == 2

    for responses in (False, True):
        bound = ChatOpenAI(
            base_url=url, api_key="none", model=name, temperature=0, use_responses_api=responses
        ).bind_tools([temperature])
        history = [HumanMessage("What is the weather in Paris?")]
        for _ in range(2):
            said, *more = bound.stream(history)
            for part in more:
                said += part
            history.append(said)
            for call in said.tool_calls:
                assert call["args"] == {"city": "Paris"}
                result = temperature.invoke(call["args"])
                history.append(ToolMessage(result, tool_call_id=call["id"]))
        assert len(history) == 4
        assert "18" in history[-1].text

    for choice in ("required", "get_weather"):
        bound = model.bind(max_tokens=200).bind_tools([get_weather], tool_choice=choice)
        called = bound.invoke("The weather in Paris?")
        (call,) = called.tool_calls
        assert call["name"] == "get_weather", call
        assert set(call["args"]) == {"city"}, call
        streamed = None
        for part in bound.stream("The weather in Paris?"):
            streamed = part if streamed is None else streamed + part
        assert streamed.tool_calls[0]["args"] == call["args"]
        history = [
            HumanMessage("The weather in Paris?"),
            AIMessage("", tool_calls=[call]),
            ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"]),
        ]
        assert model.bind_tools([get_weather]).invoke(history).response_metadata

    for method in ("json_schema", "function_calling"):
        person = ChatOpenAI(
            base_url=url, api_key="none", model=name, temperature=1.3, max_tokens=400
        ).with_structured_output(Person, method=method)
        for _ in range(5):
            assert isinstance(person.invoke("Who is it?"), Person)
    some = model.bind(max_tokens=400).with_structured_output(None, method="json_mode")
    assert isinstance(some.invoke("Some JSON"), dict | list | str | int | float | None)

    retrieve(url)
    run_agent(url)


def retrieve(url: str) -> None:
    """Finds texts by their vectors; a text is nearest to itself. LangChain encodes texts with a
    tokenizer of OpenAI's unless it is told not to."""
    embeddings = OpenAIEmbeddings(
        base_url=url, api_key="none", model="encoder", check_embedding_ctx_length=False
    )
    texts = ["The sky is blue.", "Paris is the capital of France.", "Bread is made of flour."]
    retriever = InMemoryVectorStore.from_texts(texts, embeddings).as_retriever(
        search_kwargs={"k": 1}
    )
    for text in texts:
        (found,) = retriever.invoke(text)
        assert found.page_content == text
    assert len(embeddings.embed_query("Hello")) == len(embeddings.embed_documents(texts)[0])


def run_agent(url: str) -> None:
    program = Path(__file__).parents[3] / "examples" / "langchain_agent.py"
    environ = {**os.environ, "OPENAI_BASE_URL": url}
    ran = subprocess.run(
        [sys.executable, program], env=environ, check=True, capture_output=True, text=True
    )
    assert ran.stdout.endswith("\n\nIt is 18 degrees and sunny in Paris.\n"), ran.stdout
