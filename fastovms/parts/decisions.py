"""Endpoint `/v1/decisions`: typed questions about one input, answered with probabilities.

The request format is that of OpenAI's Decisions API (openai-python 3.57). Each question is sent to
the model as a user message that lists a short label for each allowed answer. The probability of an
answer is the probability that the model's reply begins with all tokens of its label, divided by the
sum over all labels. Nothing is sampled. All questions share the prompt before them, so the prefix
cache computes it once.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, product
from string import ascii_uppercase
from typing import Any, Final, Literal, NamedTuple

import msgspec

from fastovms.api import offload
from fastovms.api.body import one_of, wrong
from fastovms.api.chat_messages import ChatMessages
from fastovms.api.chat_tools import ToolUse
from fastovms.api.context import ApiContext
from fastovms.api.dialect import OPENAI, AnswerSchema, Dialect
from fastovms.api.endpoint import Operation, Route, endpoint, warning_headers
from fastovms.api.fields import Queueing, queueing
from fastovms.api.generate import Usage
from fastovms.api.prompt import (
    PromptEncoder,
    TemplateFields,
    check_text,
    context_exceeded,
    render_prompt,
    template_options,
)
from fastovms.api.request_schemas import GenerationFields, ModelField
from fastovms.api.scoring import run_single_steps
from fastovms.api.served import ServedModel
from fastovms.api.typed_body import hold_model, read_named
from fastovms.errors import FieldFault, InvalidField
from fastovms.http.messages import Request, Response
from fastovms.params import GenerationRequest, SamplingParams, Task
from fastovms.parts.responses.ids import item_id_factory
from fastovms.parts.responses.input import ItemRules, read_input, to_messages
from fastovms.parts.responses.output import ResponseUsage, response_usage
from fastovms.telemetry.metrics import FinishedRequest
from fastovms.text.output import opens_reasoning

MAX_QUESTIONS: Final = 400
MAX_CHOICES: Final = 255
_MAX_DIGITS: Final = 10
"""Scores up to this level use digits as labels."""

_AT_ONCE: Final = 64
"""The number of requests queued to the model at a time, so that other clients' requests are
scheduled in between."""

_MARK: Final = "question7f3amark"
"""A placeholder for the question while the chat template is rendered."""

_QUESTION_COST: Final = 1000
"""The number of body bytes that one question counts for when the work of a request is estimated,
because each question is encoded separately."""

_TAIL: Final = 32
"""The number of prompt characters that are encoded together with a label, because its tokens depend
on the preceding text."""


class DecisionsRequest(ModelField, frozen=True, kw_only=True):
    """The body of `POST /v1/decisions`."""

    input: str | list[dict[str, Any]] | None = None
    questions: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_salt: str | None = None
    priority: int | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    safety_identifier: str | None = None


class AnswerProbability(AnswerSchema, kw_only=True):
    """The probability of one answer. A choice is named by its value; a score level has its label
    and, as value, its index from 0."""

    label: str | msgspec.UnsetType = msgspec.UNSET
    probability: float
    value: str | bool | int


class DecisionAnswer(AnswerSchema, kw_only=True, omit_defaults=True):
    """The answer to a question, or a `refusal` if the model gives all allowed answers probability
    zero."""

    type: Literal["predicate", "choice", "score", "refusal"]
    name: str | None
    probability: float | msgspec.UnsetType = msgspec.UNSET
    choice: str | bool | msgspec.UnsetType = msgspec.UNSET
    score: float | msgspec.UnsetType = msgspec.UNSET
    confidence: float | msgspec.UnsetType = msgspec.UNSET
    probabilities: list[AnswerProbability] | msgspec.UnsetType = msgspec.UNSET


class Decision(AnswerSchema, kw_only=True):
    """The response body of `/v1/decisions`; answers are in the order of the questions. The usage
    counts the prompts of all questions, and one output token per computed distribution."""

    answers: list[DecisionAnswer]
    model: str
    usage: ResponseUsage


@dataclass(frozen=True, slots=True)
class Question:
    """One validated question.

    Attributes:
        kind: "predicate", "choice" or "score".
        place: the path of the question's field, for error messages.
        name: the client's name for the question.
        options: the values of the allowed answers in the client's order; True and False for a
            predicate.
        labels: the label of each option, in the same order.
        text: the text for the model.
    """

    kind: str
    place: str
    name: str | None
    options: Sequence[str | bool]
    labels: Sequence[Sequence[str]]
    text: str


class _Option(NamedTuple):
    value: str | bool
    description: str | None


def _predicate(instructions: str, place: str, name: str | None) -> Question:
    text = f"{instructions}\n\nIs this true? Answer yes or no."
    labels = (("yes", "Yes"), ("no", "No"))
    return Question("predicate", place, name, (True, False), labels, text)


def _choice(
    instructions: str, options: Sequence[_Option], place: str, name: str | None
) -> Question:
    labels = _letters(len(options))
    listed = "\n".join(map(_line, labels, options))
    text = f"{instructions}\n\n{listed}\n\nAnswer with the letters of one of these."
    if len(labels[0]) == 1:
        text = text.replace("the letters of", "the letter of")
    values = [option.value for option in options]
    return Question("choice", place, name, values, [(label,) for label in labels], text)


def _score(instructions: str, options: Sequence[_Option], place: str, name: str | None) -> Question:
    count = len(options)
    labels = [str(i) for i in range(count)] if count <= _MAX_DIGITS else _letters(count)
    listed = "\n".join(map(_line, labels, options))
    word = "number" if count <= _MAX_DIGITS else "letters"
    text = f"{instructions}\n\n{listed}\n\nAnswer with the {word} of one of these."
    values = [option.value for option in options]
    return Question("score", place, name, values, [(label,) for label in labels], text)


def _letters(count: int) -> list[str]:
    """Returns `count` labels of equal length, so that no label is a prefix of another."""
    if count <= len(ascii_uppercase):
        return list(ascii_uppercase[:count])
    return ["".join(pair) for pair in islice(product(ascii_uppercase, repeat=2), count)]


def _line(label: str, option: _Option) -> str:
    value = option.value if isinstance(option.value, str) else str(option.value).lower()
    return f"{label}: {value}" + (f" ({option.description})" if option.description else "")


def _read_questions(given: Sequence[Mapping[str, Any]] | None) -> list[Question]:
    if given is None:
        raise InvalidField("questions is required", param="questions")
    if not 0 < len(given) <= MAX_QUESTIONS:
        raise InvalidField(
            f"questions must have 1 to {MAX_QUESTIONS} entries, not {len(given)}", param="questions"
        )
    return [_question(entry, f"questions[{i}]") for i, entry in enumerate(given)]


def _question(given: Mapping[str, Any], place: str) -> Question:
    kind = one_of(given.get("type"), ("predicate", "choice", "score"), f"{place}.type")
    name = given.get("name")
    if name is not None and not isinstance(name, str):
        raise wrong(f"{place}.name", "a string", name)
    instructions = _text(given.get("instructions"), f"{place}.instructions")
    members = {"predicate": None, "choice": "choices", "score": "levels"}
    member = members[kind]
    known = {"type", "name", "instructions", member}
    if others := [key for key in given if key not in known]:
        raise InvalidField(
            f"{place}.{others[0]} is not a field of a question of kind {kind}", param=place
        )
    if member is None:
        return _predicate(instructions, place, name)
    key, kinds = ("value", (str, bool)) if kind == "choice" else ("label", (str,))
    options = _options(given.get(member), f"{place}.{member}", key, kinds)
    make = _choice if kind == "choice" else _score
    return make(instructions, options, place, name)


def _options(given: object, place: str, key: str, kinds: tuple[type, ...]) -> list[_Option]:
    if not isinstance(given, list) or not 2 <= len(given) <= MAX_CHOICES:
        raise wrong(place, f"a list of 2 to {MAX_CHOICES} objects", given)
    options = []
    for position, entry in enumerate(given):
        if not isinstance(entry, dict):
            raise wrong(f"{place}[{position}]", "an object", entry)
        value, description = entry.get(key), entry.get("description")
        if not isinstance(value, str | bool) or type(value) not in kinds or value == "":
            words = "a string or a boolean" if bool in kinds else "a string"
            raise wrong(f"{place}[{position}].{key}", f"{words}, not empty", value)
        if description is not None and not isinstance(description, str):
            raise wrong(f"{place}[{position}].description", "a string", description)
        options.append(_Option(value, description))
    seen = {(type(option.value), option.value) for option in options}
    if len(seen) < len(options):
        raise InvalidField(f"{place} must not have the same {key} twice", param=place)
    return options


def _text(given: object, place: str) -> str:
    """Returns instructions as text: a string, or parts of text and JSON."""
    parts = [{"type": "input_text", "text": given}] if isinstance(given, str) else given
    if not isinstance(parts, list) or not parts:
        raise wrong(place, "a string or a list of parts", given)
    texts = []
    for position, part in enumerate(parts):
        name = f"{place}[{position}]"
        if not isinstance(part, dict):
            raise wrong(name, "an object", part)
        match part.get("type"), part.get("text"), part.get("data"):
            case "input_text", str() as text, _:
                texts.append(text)
            case "input_json", _, (dict() | list()) as data:
                texts.append(msgspec.json.encode(data).decode())
            case _:
                raise wrong(name, "a part of type input_text or input_json", part.get("type"))
    text = "\n\n".join(texts)
    if not text.strip():
        raise InvalidField(f"{place} must not be empty", param=place)
    return text


_ITEM_TYPES: Final = (
    "message",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
)


def _chat_of(given: str | Sequence[Mapping[str, Any]], rules: ItemRules) -> ChatMessages:
    """Returns the input as chat messages, with `_MARK` instead of the question. Raises
    InvalidField if an item is malformed or unsupported by the model."""
    items = given if isinstance(given, str) else [_with_json_as_text(item) for item in given]
    for position, item in enumerate(() if isinstance(items, str) else items):
        one_of(item.get("type", "message"), _ITEM_TYPES, f"input[{position}].type")
    chat = to_messages(read_input(items, rules))
    messages, last = list(chat.messages), chat.messages[-1]
    content = last.get("content")
    if last["role"] == "user" and isinstance(content, str):
        messages[-1] = {**last, "content": f"{content}\n\n{_MARK}"}
    else:
        messages.append({"role": "user", "content": _MARK})
    return ChatMessages(messages, chat.images, chat.warnings)


def _with_json_as_text(item: Mapping[str, Any]) -> Mapping[str, Any]:
    parts = item.get("content")
    if not isinstance(parts, list):
        return item
    content = [
        {"type": "input_text", "text": msgspec.json.encode(part["data"]).decode()}
        if isinstance(part, dict)
        and part.get("type") == "input_json"
        and isinstance(part.get("data"), dict | list)
        else part
        for part in parts
    ]
    return {**item, "content": content}


class Prompts(NamedTuple):
    """The token ids of each question's prompt, and of each label."""

    token_ids: list[list[int]]
    labels: list[list[list[tuple[int, ...]]]]


def _make_prompts(
    model: ServedModel,
    messages: Sequence[Any],
    questions: Sequence[Question],
    kwargs: Mapping[str, Any] | None,
    name: str,
) -> Prompts:
    """Returns the token ids of the prompts and labels. The time is proportional to the messages
    plus the questions. Raises RequestError if the model has no chat template or the template
    rejects the messages; InvalidField if a prompt exceeds the context.

    Args:
        messages: a chat whose last user message has `_MARK` instead of the question.
        name: the request field that the messages come from.
    """
    fields = TemplateFields(kwargs=kwargs, enable_thinking=False)
    text = render_prompt(messages, ToolUse(), template_options(model, fields), model, name)
    before, mark, after = text.rpartition(_MARK)
    if not mark:
        raise InvalidField(f"{name}: the chat template leaves out the question", param=name)
    check_text(text, name, model.info)
    reasoning_format = model.chat.reasoning_format
    if reasoning_format is not None:
        if opens_reasoning(reasoning_format, text):
            after += f"\n{reasoning_format.sections[0][1]}\n\n"
        after += reasoning_format.answer_opening
    encode = partial(model.tokenizer.encode, add_special_tokens=False)
    encoder = PromptEncoder(model.tokenizer, model.info, add_special_tokens=False)
    # The common prefix is encoded once. It ends before white space, which is always a token
    # boundary.
    head = before.rstrip()
    shared, rest = encoder.encode(head, name), before[len(head) :]
    prompts, ids_of = [], {}
    for question in questions:
        token_ids = [*shared, *encode(f"{rest}{question.text}{after}")]
        longest = max(len(text) for texts in question.labels for text in texts)
        if len(token_ids) + longest > model.info.max_model_len:
            raise context_exceeded(
                f"the input and {question.place} have {len(token_ids)} tokens", model.info, name
            )
        prompts.append(token_ids)
        for text in (text for texts in question.labels for text in texts):
            if text not in ids_of:
                ids_of[text] = _label_ids(text, (question.text + after)[-_TAIL:], encode)
    labels = [[[ids_of[text] for text in texts] for texts in q.labels] for q in questions]
    return Prompts(prompts, labels)


def _label_ids(label: str, tail: str, encode: Any) -> tuple[int, ...]:
    """Returns the token ids of a label that follows the prompt text `tail`."""
    before, both = encode(tail), encode(tail + label)
    behind = both[len(before) :] if both[: len(before)] == before else encode(label)
    return tuple(behind or encode(label))


@dataclass(slots=True)
class LabelLogprobs:
    """The results for one question: the log probability of each label prefix, by its token ids."""

    logprobs: dict[tuple[int, ...], float]

    def mass(self, labels: Sequence[Sequence[tuple[int, ...]]]) -> list[float]:
        """Returns the probability of each option relative to the whole vocabulary."""
        return [math.fsum(math.exp(self.logprobs[ids]) for ids in texts) for texts in labels]


@dataclass(slots=True)
class DecisionResults:
    """The label probabilities of each question, and the numbers of tokens and model requests
    used."""

    readings: list[LabelLogprobs]
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_reads: int = 0


async def _read(
    model: ServedModel, prompts: Prompts, queue: Queueing, request_id: str
) -> DecisionResults:
    """Computes the labels' probabilities: those of the first tokens of all labels, then those of
    the tokens that follow each label prefix. Raises RequestError or BackendError if a prompt cannot
    be computed."""
    found = DecisionResults([LabelLogprobs({(): 0.0}) for _ in prompts.token_ids])
    # The first question runs alone: the others then find their common prefix in the prefix cache.
    waiting: list[tuple[int, tuple[int, ...]]] = [(0, ())]
    later: list[tuple[int, tuple[int, ...]]] = [(i, ()) for i in range(1, len(prompts.token_ids))]
    while waiting:
        deeper: list[tuple[int, tuple[int, ...]]] = []
        for start in range(0, len(waiting), _AT_ONCE):
            some = waiting[start : start + _AT_ONCE]
            deeper += await _read_some(model, prompts, some, found, queue, request_id)
        waiting, later = [*later, *deeper], []
    return found


async def _read_some(
    model: ServedModel,
    prompts: Prompts,
    nodes: Sequence[tuple[int, tuple[int, ...]]],
    found: DecisionResults,
    queue: Queueing,
    request_id: str,
) -> list[tuple[int, tuple[int, ...]]]:
    """Computes the tokens that may follow each label prefix, and returns the prefixes that need a
    further token."""
    followers = [_followers(prompts.labels[position], begun) for position, begun in nodes]
    requests = [
        GenerationRequest(
            f"{request_id}-{position}-{'-'.join(map(str, begun))}",
            [*prompts.token_ids[position], *begun],
            SamplingParams(
                max_tokens=1, temperature=0, ignore_eos=True, logprobs=0, logprob_token_ids=ids
            ),
            **queue._asdict(),
        )
        for (position, begun), ids in zip(nodes, followers, strict=True)
    ]
    try:
        model.backend.check(requests[0].params)
    except FieldFault as fault:
        raise fault.named("model", f"model {model.info.name}: {fault.field}") from fault
    outputs = await run_single_steps(model.backend, requests)
    deeper = []
    for (position, begun), ids, request, output in zip(
        nodes, followers, requests, outputs, strict=True
    ):
        [entry] = output.logprobs
        reading = found.readings[position]
        for token_id, logprob in zip(entry.top_token_ids, entry.top_logprobs, strict=True):
            reading.logprobs[(*begun, token_id)] = reading.logprobs[begun] + min(0.0, logprob)
        found.num_prompt_tokens += len(request.prompt_token_ids)
        found.num_cached_tokens += output.num_cached_tokens
        found.num_reads += 1
        deeper += [
            (position, (*begun, token_id))
            for token_id in ids
            if _followers(prompts.labels[position], (*begun, token_id))
        ]
    return deeper


def _followers(
    labels: Sequence[Sequence[tuple[int, ...]]], begun: tuple[int, ...]
) -> tuple[int, ...]:
    """Returns the distinct tokens that follow the prefix `begun` in any label."""
    size = len(begun)
    return tuple(
        dict.fromkeys(
            ids[size]
            for texts in labels
            for ids in texts
            if len(ids) > size and ids[:size] == begun
        )
    )


def _shares(mass: Sequence[float]) -> list[float] | None:
    """Returns the values scaled to sum to 1; None = all values are zero."""
    total = math.fsum(mass)
    return [part / total for part in mass] if total > 0 else None


def _answer(question: Question, mass: Sequence[float]) -> DecisionAnswer:
    shares = _shares(mass)
    if shares is None:
        return DecisionAnswer(type="refusal", name=question.name)
    best = max(range(len(shares)), key=shares.__getitem__)
    if question.kind == "predicate":
        return DecisionAnswer(type="predicate", name=question.name, probability=shares[0])
    if question.kind == "choice":
        return DecisionAnswer(
            type="choice",
            name=question.name,
            choice=question.options[best],
            confidence=shares[best],
            probabilities=[
                AnswerProbability(probability=share, value=value)
                for share, value in zip(shares, question.options, strict=True)
            ],
        )
    return DecisionAnswer(
        type="score",
        name=question.name,
        score=math.fsum(i * share for i, share in enumerate(shares)),
        confidence=shares[best],
        probabilities=[
            AnswerProbability(label=str(label), probability=share, value=i)
            for i, (label, share) in enumerate(zip(question.options, shares, strict=True))
        ],
    )


class _Decided(NamedTuple):
    model: ServedModel
    masses: list[list[float]]
    readings: DecisionResults


class Decisions:
    """Handles `POST /v1/decisions`."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    async def decide(self, request: Request, dialect: Dialect) -> Response:
        """Answers the questions of a request."""
        context = self._context
        body, known = await read_named(
            request, DecisionsRequest, context.models, dialect, context.bodies
        )
        tasks = (Task.TEXT_GENERATION,)
        model = await hold_model(request, known, context.models, tasks, streams=False)
        assert isinstance(model, ServedModel)

        def read() -> tuple[ChatMessages, list[Question]]:
            if not body.input:
                raise InvalidField("input is required and must not be empty", param="input")
            rules = ItemRules(dialect, item_id_factory(context.new_id, dialect))
            return _chat_of(body.input, rules), _read_questions(body.questions)

        chat, questions = await offload.run(read, len(request.body))
        decided = await self._decide(request, body, model, chat.messages, questions, "input")
        found = decided.readings
        usage = Usage(found.num_prompt_tokens, found.num_reads, found.num_cached_tokens)
        answer = Decision(
            answers=[*map(_answer, questions, decided.masses)],
            model=model.info.name,
            usage=response_usage(usage),
        )
        headers = warning_headers(chat.warnings, request)
        return Response(200, msgspec.json.encode(answer), headers=headers)

    async def _decide(
        self,
        request: Request,
        body: DecisionsRequest,
        model: ServedModel,
        messages: Sequence[Any],
        questions: Sequence[Question],
        name: str,
    ) -> _Decided:
        """Computes the answers, and records the cost in the log and the metrics."""
        fields = GenerationFields(cache_salt=body.cache_salt, priority=body.priority)
        queue = queueing(fields, request.caller, request.sender)
        kwargs = body.chat_template_kwargs
        make = partial(_make_prompts, model, messages, questions, kwargs, name)
        cost = len(request.body) + _QUESTION_COST * len(questions)
        prompts = await model.chat.rendered(request.sender, make, cost)
        readings = await _read(model, prompts, queue, self._context.new_id())
        request.log_fields["prompt_tokens"] = readings.num_prompt_tokens
        request.log_fields["cached_tokens"] = readings.num_cached_tokens
        request.log_fields["completion_tokens"] = readings.num_reads
        request.caller.charge(readings.num_prompt_tokens + readings.num_reads)
        seconds = asyncio.get_running_loop().time() - request.received_at
        model.metrics.request_finished(
            FinishedRequest(
                seconds, ("stop",), readings.num_prompt_tokens, readings.num_reads, 1, 1
            )
        )
        masses = [
            reading.mass(labels)
            for reading, labels in zip(readings.readings, prompts.labels, strict=True)
        ]
        return _Decided(model, masses, readings)


_DECIDE: Final = Operation(
    "Answers typed questions about an input with probabilities, in OpenAI's format.",
    Decision,
    "Decisions",
    body=DecisionsRequest,
    required=("input", "questions"),
    examples="decisions",
)


def endpoints(context: ApiContext) -> Iterator[Route]:
    """Yields the route of `/decisions`."""
    yield Route("POST", "/v1/decisions", endpoint(Decisions(context).decide, OPENAI), _DECIDE)
