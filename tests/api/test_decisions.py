"""Tests of `fastovms/parts/decisions.py`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from fastovms.api.served import ChatModel
from fastovms.config import ChatConfig
from fastovms.errors import FieldFault
from fastovms.params import FinishReason, GenerationOutput, TokenLogprobs
from fastovms.text.reasoning import REASONING_FORMATS
from tests.api.chat_models import TEMPLATE, chat_model
from tests.fakes import EOS, model_info

DECISIONS = "/v1/decisions"
VOCAB_SIZE = EOS + 1
PREDICATE = {"type": "predicate", "instructions": "It rains."}
CHOICE = {
    "type": "choice",
    "name": "team",
    "instructions": "Who?",
    "choices": [{"value": "a", "description": "the first"}, {"value": True}, {"value": "true"}],
}
SCORE = {"type": "score", "instructions": "How bad?", "levels": [{"label": "ok"}, {"label": "bad"}]}
MANY = {**CHOICE, "choices": [{"value": f"v{i}"} for i in range(255)]}


def logprobs_after(token_ids: Sequence[int]) -> np.ndarray:
    """Returns the fake model's distribution after the given tokens."""
    rng = np.random.default_rng([len(token_ids), *token_ids[-40:]])
    logits = rng.standard_normal(VOCAB_SIZE) * 3
    found: np.ndarray = logits - np.log(np.exp(logits).sum())
    return found


@pytest.fixture
def make(make_api) -> Callable[..., Any]:
    """Returns an API whose model has the log probabilities of `logprobs_after`."""

    def make_one(chat: ChatModel | None = None, **options: Any) -> Any:
        model = model_info(max_model_len=4000)
        api = make_api("x", model=model, chat=chat or chat_model(), **options)

        def next_output(request: Any, index: int, start: int) -> GenerationOutput:
            params = request.params
            assert (params.max_tokens, params.temperature, params.ignore_eos) == (1, 0, True)
            values = logprobs_after(request.prompt_token_ids)
            ids = sorted(params.logprob_token_ids, key=lambda i: -values[i])
            best = int(values.argmax())
            entry = TokenLogprobs(
                best, float(values[best]), 1, ids, [float(values[i]) for i in ids]
            )
            return GenerationOutput(0, [best], FinishReason.LENGTH, 1, logprobs=[entry])

        api.backend._next_output = next_output
        return api

    return make_one


def expected(prompt: Sequence[int], labels: Sequence[Sequence[str]]) -> list[float]:
    """Returns the probabilities of labels by the chain rule, and their sum."""
    masses = []
    for texts in labels:
        mass = 0.0
        for text in texts:
            begun, total = list(prompt), 0.0
            for token_id in text.encode():
                total += logprobs_after(begun)[token_id]
                begun.append(token_id)
            mass += math.exp(total)
        masses.append(mass)
    return masses


def prompts_of(api: Any) -> list[list[int]]:
    """Returns the prompts of the questions in order."""
    return [list(r.prompt_token_ids) for r in api.backend.submitted if r.request_id.endswith("-")]


def letters(count: int) -> list[list[str]]:
    return [[chr(65 + i // 26) + chr(65 + i % 26)] for i in range(count)]


@pytest.mark.parametrize(
    ("question", "labels"),
    [
        (PREDICATE, [["yes", "Yes"], ["no", "No"]]),
        (CHOICE, [["A"], ["B"], ["C"]]),
        (SCORE, [["0"], ["1"]]),
        (MANY, letters(255)),
        ({**SCORE, "levels": [{"label": f"l{i}"} for i in range(12)]},
         [[chr(65 + i)] for i in range(12)]),
    ],
    ids=["predicate", "choice", "score", "labels of several tokens", "many levels"],
)  # fmt: skip
async def test_probabilities_are_those_of_the_labels(make, question, labels):
    api = make()
    body = {"model": "fake", "input": "The street is wet.", "questions": [PREDICATE, question]}
    answer = await api.answer(DECISIONS, body)
    masses = expected(prompts_of(api)[1], labels)
    shares = [mass / math.fsum(masses) for mass in masses]
    found = answer["answers"][1]
    assert found["type"] == question["type"]
    assert found["name"] == question.get("name")
    if question["type"] == "predicate":
        assert found["probability"] == pytest.approx(shares[0], rel=1e-9)
        return
    assert [entry["probability"] for entry in found["probabilities"]] == pytest.approx(shares)
    assert math.fsum(entry["probability"] for entry in found["probabilities"]) == pytest.approx(1)
    assert found["confidence"] == pytest.approx(max(shares))
    if question["type"] == "choice":
        values = [choice["value"] for choice in question["choices"]]
        assert [entry["value"] for entry in found["probabilities"]] == values
        best = values[shares.index(max(shares))]
        assert (found["choice"], type(found["choice"])) == (best, type(best))
    else:
        assert found["score"] == pytest.approx(sum(i * share for i, share in enumerate(shares)))


async def test_prompts_share_all_that_is_before_the_question(make):
    api = make()
    questions = [PREDICATE, CHOICE, SCORE]
    body = {"model": "fake", "input": "The street is wet.", "questions": questions}
    await api.post(DECISIONS, body)
    texts = [bytes(prompt).decode() for prompt in prompts_of(api)]
    assert all(text.startswith("u:The street is wet.\n\n") for text in texts)
    assert all(text.endswith("<thinking False>>") for text in texts)
    assert "A: a (the first)\nB: true\nC: true" in texts[1]
    assert "0: ok\n1: bad" in texts[2]
    assert api.backend.submitted[0].request_id.endswith("-0-")


@pytest.mark.parametrize(
    ("chat", "end"),
    [
        (lambda: chat_model(default_chat_template_kwargs={"opened": True}),
         "<think>\n</think>\n\n"),
        (lambda: ChatModel(TEMPLATE, None, REASONING_FORMATS["gptoss"], ChatConfig()),
         "<|channel|>final<|message|>"),
    ],
)  # fmt: skip
async def test_an_answer_does_not_begin_with_reasoning(make, chat, end):
    api = make(chat())
    body = {"model": "fake", "input": "a", "questions": [PREDICATE]}
    await api.answer(DECISIONS, body)
    assert bytes(prompts_of(api)[0]).decode().endswith(end)


async def test_histories_and_json(make):
    api = make()
    items = [
        {"role": "system", "content": "Judge."},
        {"role": "user", "content": [{"type": "input_json", "data": {"a": [10**30]}}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "wet"},
    ]
    question = {**PREDICATE, "instructions": [{"type": "input_json", "data": [{"b": 10**30}]}]}
    body = {"model": "fake", "input": items, "questions": [question]}
    await api.answer(DECISIONS, body)
    text = bytes(prompts_of(api)[0]).decode()
    assert 's:Judge.;u:{"a":[1000000000000000000000000000000]};' in text
    assert 'u:[{"b":1000000000000000000000000000000}]' in text


async def test_usage_and_refusals(make):
    api = make()
    api.backend.num_cached_tokens = 3
    body = {"model": "fake", "input": "a", "questions": [PREDICATE] * 2, "cache_salt": "s"}
    _, answer = await api.post(DECISIONS, body)
    sizes = [len(request.prompt_token_ids) for request in api.backend.submitted]
    assert answer["usage"]["input_tokens"] == sum(sizes)
    assert answer["usage"]["output_tokens"] == len(sizes)
    assert {request.cache_salt for request in api.backend.submitted} == {"s"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"input": None}, "input is required"),
        ({"input": ""}, "input is required"),
        ({"input": 5}, "input must be"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
         "input[0]"),
        *(({"input": [{"type": kind, "id": "a"}]}, "input[0].type must be one of")
          for kind in ("item_reference", "reasoning", "compaction", None, 5)),
        ({"questions": None}, "questions is required"),
        ({"questions": []}, "1 to 400 entries, not 0"),
        ({"questions": [PREDICATE] * 401}, "1 to 400 entries, not 401"),
        ({"questions": [{}]}, "questions[0].type"),
        ({"questions": [{**PREDICATE, "name": 5}]}, "questions[0].name"),
        ({"questions": [{**PREDICATE, "levels": []}]}, "questions[0].levels"),
        ({"questions": [{**PREDICATE, "instructions": " "}]}, "questions[0].instr"),
        ({"questions": [{**PREDICATE, "instructions": [{"type": "input_image"}]}]},
         "questions[0].instructions[0]"),
        ({"questions": [{**CHOICE, "choices": [{"value": "a"}]}]}, "list of 2 to 255"),
        ({"questions": [{**CHOICE, "choices": [{"value": "a"}] * 256}]}, "2 to 255"),
        ({"questions": [{**CHOICE, "choices": [{"value": "a"}] * 2}]}, "twice"),
        ({"questions": [{**CHOICE, "choices": [{"value": 1}, {"value": "a"}]}]},
         "choices[0].value"),
        ({"questions": [{**SCORE, "levels": ["a", "b"]}]}, "levels[0] must be an"),
        ({"questions": [PREDICATE], "cache_salt": ""}, "cache_salt"),
        ({"input": "a" * 5000}, "context length"),
    ],
)  # fmt: skip
async def test_invalid_decision_request_is_refused(make, fields, words):
    api = make()
    good = {"input": "a", "questions": [PREDICATE]}
    status, answer = await api.post(DECISIONS, {"model": "fake", **good, **fields})
    assert status == 400
    assert words in answer["error"]["message"]
    assert not api.backend.submitted


async def test_a_backend_without_such_log_probabilities_refuses(make):
    api = make(ChatModel(TEMPLATE, None, None, ChatConfig()))
    api.backend.check_error = FieldFault("logprob_token_ids", " is not supported by it")
    body = {"model": "fake", "input": "a", "questions": [PREDICATE]}
    assert await api.refused(DECISIONS, body) == "model"
