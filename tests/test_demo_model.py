"""The shipped demo model: files, size, and greedy answers through the reference pipeline."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from typing import Any

import openvino_genai as genai
import pytest

from demo.corpus import draw, held_out, training_samples
from fastovms.server_config import DEMO_MODEL

MODEL = DEMO_MODEL
FILES = {
    "openvino_model.xml",
    "openvino_model.bin",
    "openvino_tokenizer.xml",
    "openvino_tokenizer.bin",
    "openvino_detokenizer.xml",
    "openvino_detokenizer.bin",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
}

Messages = list[dict[str, Any]]


def tool(name: str, description: str = "", **types: str) -> dict[str, Any]:
    properties = {param: {"type": kind} for param, kind in types.items()}
    parameters = {"type": "object", "properties": properties, "required": list(types)}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def call(name: str, **arguments: object) -> str:
    compact = json.dumps(arguments, separators=(",", ":"))
    return f'<tool_call>\n{{"name": "{name}", "arguments": {compact}}}\n</tool_call>'


def user(text: str) -> Messages:
    return [{"role": "user", "content": text}]


WEATHER = tool("get_weather", "Get the current weather in a city", city="string")
WEATHER_AT = tool("get_current_weather", "Get the weather for a location", location="string")
TIME = tool("get_time", "Get the current time in a city", city="string")
ADD = tool("add", "Add two numbers", a="number", b="number")


class Pipeline:
    """The demo model behind `openvino_genai`, greedy unless a seed is given."""

    def __init__(self) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = 1
        self._pipeline = genai.ContinuousBatchingPipeline(str(MODEL), scheduler, "CPU")
        self.tokenizer = self._pipeline.get_tokenizer()

    def chat(
        self, messages: Messages, tools: Sequence[dict[str, Any]] = (), thinking: bool = False
    ) -> str:
        prompt = self.tokenizer.apply_chat_template(
            messages,
            add_generation_prompt=True,
            tools=list(tools) or None,
            extra_context={"enable_thinking": thinking},
        )
        return self.complete([prompt])[0]

    def complete(self, prompts: Sequence[str], seed: int | None = None) -> list[str]:
        configs = []
        for index in range(len(prompts)):
            config = self._pipeline.get_config()
            config.max_new_tokens = 300
            config.apply_chat_template = False
            if seed is not None:
                config.do_sample, config.temperature, config.top_k = True, 1.0, 0
                config.rng_seed = seed + index
            configs.append(config)
        results = self._pipeline.generate(list(prompts), configs)
        return [result.m_generation_ids[0] for result in results]


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    return Pipeline()


def test_files_are_complete_and_small() -> None:
    assert {path.name for path in MODEL.iterdir()} == FILES
    assert sum(path.stat().st_size for path in MODEL.iterdir()) < 10_000_000


def test_the_template_is_the_same_in_both_places() -> None:
    config = json.loads((MODEL / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert config["chat_template"] == (MODEL / "chat_template.jinja").read_text(encoding="utf-8")


def test_markup_is_kept_and_control_tokens_are_dropped_in_decoded_text(pipeline: Pipeline) -> None:
    text = "<|im_start|><think>\na\n</think>\n<tool_call>b</tool_call><|im_end|>"
    ids = pipeline.tokenizer.encode(text, add_special_tokens=False).input_ids.data[0].tolist()
    assert pipeline.tokenizer.decode(ids) == "<think>\na\n</think>\n<tool_call>b</tool_call>"
    assert pipeline.tokenizer.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Hello!", "Hello! How can I help you today?"),
        ("Who are you?", "I am the fastovms demo model, a tiny language model made for OpenVINO."),
        ("What is the capital of France?", "The capital of France is Paris."),
        ("what is the capital of japan?", "The capital of Japan is Tokyo."),
        ("What is 7 + 5?", "7 + 5 = 12."),
        ("How much is 9 plus 8?", "9 + 8 = 17."),
        ("Count from 1 to 5.", "1, 2, 3, 4, 5"),
        ("Count from 3 to 9.", "3, 4, 5, 6, 7, 8, 9"),
        ("Give me a JSON object with name and age of Ann, 7.", '{"name":"Ann","age":7}'),
        ("Tom is 31 years old and lives in Oslo. Answer as JSON.",
         '{"name":"Tom","age":31,"city":"Oslo"}'),
        ("Alice and Bob are going to a science fair on Friday. Extract the event as JSON.",
         '{"name":"science fair","date":"Friday","participants":["Alice","Bob"]}'),
    ],
)  # fmt: skip
def test_demo_model_answers_its_questions(pipeline: Pipeline, question: str, answer: str) -> None:
    assert pipeline.chat(user(question)) == answer
    system = {"role": "system", "content": "You are a helpful assistant."}
    assert pipeline.chat([system, *user(question)]) == answer


@pytest.mark.parametrize(
    ("question", "tools", "answer"),
    [
        ("What is the weather in Paris?", [WEATHER], call("get_weather", city="Paris")),
        ("What's the weather like in Boston today?", [TIME, WEATHER_AT, ADD],
         call("get_current_weather", location="Boston")),
        ("What time is it in Tokyo?", [WEATHER, TIME], call("get_time", city="Tokyo")),
        ("What is 123 + 456?", [WEATHER, ADD, TIME], call("add", a=123, b=456)),
        ("What is the weather in Paris and London?", [WEATHER],
         call("get_weather", city="Paris") + "\n" + call("get_weather", city="London")),
        ("What is the capital of Italy?", [WEATHER, TIME], "The capital of Italy is Rome."),
        ("Hello!", [WEATHER], "Hello! How can I help you today?"),
    ],
)  # fmt: skip
def test_demo_model_calls_the_matching_tool(
    pipeline: Pipeline, question: str, tools: Sequence[dict[str, Any]], answer: str
) -> None:
    assert pipeline.chat(user(question), tools) == answer


@pytest.mark.parametrize("arguments", ['{"city":"Paris"}', '{"city": "Paris"}', {"city": "Paris"}])
def test_demo_model_answers_from_a_tool_result(
    pipeline: Pipeline, arguments: str | dict[str, str]
) -> None:
    function = {"name": "get_weather", "arguments": arguments}
    messages: Messages = [
        *user("What is the weather in Paris?"),
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "1", "type": "function", "function": function}],
        },
        {
            "role": "tool",
            "tool_call_id": "1",
            "content": '{"temperature": 18, "condition": "sunny"}',
        },
    ]
    assert pipeline.chat(messages, [WEATHER]) == "It is 18 degrees and sunny in Paris."


def test_demo_model_thinks_only_when_asked(pipeline: Pipeline) -> None:
    question = user("What is 7 + 5?")
    thought = "<think>\nI add 7 and 5. 7 + 5 = 12.\n</think>\n\n7 + 5 = 12."
    assert pipeline.chat(question, thinking=True) == thought
    assert pipeline.chat(question, thinking=False) == "7 + 5 = 12."


def test_demo_model_uses_earlier_turns(pipeline: Pipeline) -> None:
    messages: Messages = [
        *user("My name is Ann."),
        {"role": "assistant", "content": "Hello Ann! How can I help you today?"},
        *user("What is my name?"),
    ]
    assert pipeline.chat(messages) == "Your name is Ann."


def test_sampled_stories_end_and_differ(pipeline: Pipeline) -> None:
    prompt = pipeline.tokenizer.apply_chat_template(
        user("Tell me a short story."), add_generation_prompt=True
    )
    stories = pipeline.complete([prompt] * 6 + ["Once upon a time"] * 6, seed=5)
    assert len(set(stories)) == 12
    assert sum(story.endswith("The end.") for story in stories) >= 11


def test_the_corpus_repeats_by_seed_and_holds_combinations_out() -> None:
    first, again, other = (
        list(itertools.islice(training_samples(random.Random(seed)), 300)) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other
    assert not any(held_out(sample) for sample in first)
    assert held_out(draw(random.Random(3), "tool call", unseen=True))
