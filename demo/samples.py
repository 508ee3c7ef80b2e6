"""Whole conversations up to the answer, one generator for each category of the corpus."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from demo import calls, memories, objects, toolkit, turns, words
from demo.stories import story
from demo.toolkit import Call
from demo.turns import Turn

Message = dict[str, Any]


@dataclass(frozen=True)
class Sample:
    """A conversation up to the answer, and the answer.

    `messages` is empty for plain text, whose whole text is `answer`. `key` names the combination
    that decides the answer; where there is no single right one, `exact` is false. `learn_history`
    says that the earlier assistant turns are worded as the model should word them.
    """

    answer: str
    key: str
    messages: tuple[Message, ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    reasoning: str = ""
    thinking: bool = False
    exact: bool = True
    learn_history: bool = True

    @property
    def target(self) -> str:
        """What the model is to write, the thought included."""
        if not self.thinking:
            return self.answer
        return f"<think>\n{self.reasoning}\n</think>\n\n{self.answer}"


SYSTEMS = (
    "You are a friendly assistant.", "You are a helpful AI assistant.", "Answer briefly.",
    "Be kind.",
    "You are a chatbot.", "Be concise.", "Answer in one sentence.", "You are an expert.",
    "Be brief.",
    "You are a pirate. Always talk like a pirate.", "You help people with their questions.",
    "You are a helpful assistant. Answer the user's questions.", "Use the tools when they fit.",
    "You are a helpful assistant with access to tools.", "You are a polite and honest assistant.",
    "You are {0}, the assistant of {1}.", "You work for {1}. Today is {2}.",
    "Today is {2}, {3} 2025.",
    "The user is called {0} and lives in {4}.", "You are an assistant that knows about {5}.",
)  # fmt: skip


def a_system(rng: random.Random) -> str | None:
    draw = rng.random()
    if draw < 0.45:
        return None
    if draw < 0.75:
        return "You are a helpful assistant."
    return rng.choice(SYSTEMS).format(
        words.a_name(rng), words.invented_name(rng), rng.choice(words.DAYS),
        f"{rng.choice(words.MONTHS)} {rng.randint(1, 31)}", words.a_city(rng), words.a_topic(rng),
    )  # fmt: skip


def opening(rng: random.Random) -> list[Message]:
    system = a_system(rng)
    return [] if system is None else [{"role": "system", "content": system}]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def sample_of(rng: random.Random, turn: Turn, earlier: list[Message] | None = None,
              tools: list[dict[str, Any]] | None = None) -> Sample:  # fmt: skip
    """The turn after a system message, if any, and the `earlier` messages."""
    system = opening(rng)
    key = turn.key
    if key.startswith(("greeting", "identity")):
        # A fixed phrase has only itself to hold out; with the system message it is a combination.
        key = f"{key}/{system}"
    messages = (*system, *(earlier or ()), user(turn.question))
    return Sample(turn.answer, key, messages, tuple(tools or ()), turn.reasoning,
                  exact=turn.key not in INEXACT_KEYS)  # fmt: skip


INEXACT_KEYS = ("story", "made up")


def single(make: Callable[[random.Random], Turn]) -> Callable[[random.Random], Sample]:
    """A category of one question and its answer."""
    return lambda rng: sample_of(rng, make(rng))


def capital_either_way(rng: random.Random) -> Turn:
    return (turns.capital if rng.random() < 0.87 else turns.country)(rng)


def beyond(rng: random.Random) -> Turn:
    return turns.unknown(rng) if rng.random() < 0.6 else calls.lookup(rng)[0]


def json_answer(rng: random.Random) -> Sample:
    if rng.random() < 0.1:
        statement, data, _ = objects.person(rng)
        turn = objects.turn(f"{statement}.", data)
        system = {"role": "system", "content": rng.choice(objects.JSON_SYSTEMS)}
        return Sample(turn.answer, turn.key, (system, user(turn.question)), (), turn.reasoning)
    return sample_of(rng, objects.json_turn(rng))


def plain_text(rng: random.Random) -> Sample:
    """Text without a chat format, for the completions endpoint."""
    kind = rng.random()
    if kind < 0.55:
        text = story(rng)
        if rng.random() < 0.2:
            text = text.replace("Once upon a time there", "Once upon a time, there")
    elif kind < 0.75:
        countries = rng.sample(list(words.CAPITALS), rng.randint(1, 4))
        text = " ".join(f"The capital of {name} is {words.CAPITALS[name]}." for name in countries)
    elif kind < 0.82:
        start = rng.choice((0, 1, 1, rng.randint(1, 60)))
        text = ", ".join(str(n) for n in range(start, start + rng.randint(8, 30)))
    elif kind < 0.92:
        turn = rng.choice((turns.capital, turns.addition, turns.known_greeting, turns.identity))(
            rng
        )
        text = f"{turn.question}{rng.choice((' ', chr(10)))}{turn.answer}"
    else:
        name, city = words.a_name(rng), words.a_city(rng)
        hello = rng.choice(("Hello, my", "Hello! My", "Hi, my", "My"))
        text = f"{hello} name is {name} and I live in {city}. I have a {rng.choice(words.ANIMALS)}."
    return Sample(text, f"plain/{text}", exact=False)


def tool_count(rng: random.Random) -> int:
    return rng.choice((0, 0, 0, 1, 1, 2, 3))


def asked_calls(rng: random.Random) -> tuple[Turn, list[Call]]:
    """A question that needs one call, or now and then two of the same function."""
    if rng.random() < 0.12:
        return calls.parallel_turn(rng)
    call = toolkit.any_call(rng)
    question = call.question if rng.random() < 0.5 else turns.styled(rng, call.question)
    return calls.call_turn([call], question), [call]


def tool_round(rng: random.Random, turn: Turn, made: list[Call],
               text_arguments: bool = True) -> tuple[list[Message], Turn]:  # fmt: skip
    """The messages from the question to the results of `made`, and the answer as a turn."""
    results = [calls.result_of(rng, call) for call in made]
    messages = [user(turn.question), calls.call_message(rng, made, text_arguments)]
    for index, result in enumerate(results):
        messages.append(
            {"role": "tool", "tool_call_id": f"call_{index}", "content": result.content}
        )
    answer = " ".join(result.answer for result in results)
    key = f"{turn.key}/{'/'.join(result.content for result in results)}"
    return messages, Turn("", answer, "I have the result and tell it.", key)


def earlier_rounds(rng: random.Random, count: int) -> tuple[list[Message], list[Call]]:
    """Finished rounds of question, call, result and answer, each of another purpose."""
    messages: list[Message] = []
    made: list[Call] = []
    for _ in range(count):
        turn, asked = asked_calls(rng)
        if any(clashing(call, other) for call in asked for other in made):
            continue
        done, answer = tool_round(rng, turn, asked)
        messages += [*done, assistant(answer.answer)]
        made += asked
    return messages, made


def clashing(call: Call, other: Call) -> bool:
    return call.name == other.name or call.purpose == other.purpose


def several_rounds(
    rng: random.Random, count: int
) -> tuple[list[Message], list[Call], Turn, list[Call]]:
    """Earlier rounds with their calls, then a question that has a function of its own."""
    messages, before = earlier_rounds(rng, count)
    turn, made = asked_calls(rng)
    while any(clashing(call, other) for call in made for other in before):
        turn, made = asked_calls(rng)
    return messages, before, turn, made


def overlap(made: list[Call]) -> list[str]:
    """Purposes kept apart from the calls' own: the ones that only differ by a shade may meet."""
    purposes = {call.purpose for call in made}
    return ["search"] if purposes & calls.GROUPS[1] else []


def tool_call(rng: random.Random) -> Sample:
    messages, before, turn, made = several_rounds(rng, rng.choice((0, 0, 0, 1, 1, 2)))
    everything = [*before, *made]
    tools = toolkit.with_distractors(rng, everything, tool_count(rng), overlap(everything))
    return sample_of(rng, turn, messages, tools)


def tool_result(rng: random.Random) -> Sample:
    text_arguments = rng.random() < 0.75
    count = rng.choice((0, 0, 1, 1, 2)) if text_arguments else 0
    messages, before, turn, made = several_rounds(rng, count)
    done, answer = tool_round(rng, turn, made, text_arguments)
    everything = [*before, *made]
    tools = toolkit.with_distractors(rng, everything, rng.choice((0, 0, 1, 2)), overlap(everything))
    return Sample(answer.answer, answer.key, (*opening(rng), *messages, *done), tuple(tools),
                  answer.reasoning, learn_history=text_arguments)  # fmt: skip


def no_tool(rng: random.Random) -> Sample:
    """Tools are there, none fits: a plain answer."""
    if rng.random() < 0.6:
        turn = rng.choice((*PLAIN_TURNS, turns.tale))(rng)
        avoid = {"search", "add", "multiply", "subtract", "divide"}
        if turn.key.startswith("unknown"):
            avoid |= calls.GROUPS[1]
    else:
        turn, call = calls.lookup(rng)
        avoid = calls.overlapping(call.purpose)
    tools = toolkit.with_distractors(rng, (), 1 + tool_count(rng), tuple(avoid))
    return sample_of(rng, turn, tools=tools)


PLAIN_TURNS: tuple[Callable[[random.Random], Turn], ...] = (
    turns.known_greeting, turns.identity, turns.capital, turns.addition, turns.counting, turns.echo,
    turns.unknown,
)  # fmt: skip
CHAT_TURNS = (*PLAIN_TURNS, objects.json_turn, capital_either_way)


def multi_turn(rng: random.Random) -> Sample:
    if rng.random() < 0.3:
        return tool_chat(rng)
    return plain_chat(rng, rng.choice((1, 1, 2, 2, 3)))


def long_chat(rng: random.Random) -> Sample:
    """Turns that fill the context, so that far positions are as good as near ones."""
    return plain_chat(rng, rng.randint(6, 16) if rng.random() < 0.8 else rng.randint(20, 40))


def plain_chat(rng: random.Random, count: int) -> Sample:
    """`count` answered turns and a last one, often about something told before."""
    remembered = [memories.memory(rng)] if rng.random() < 0.6 else []
    pairs = [(memory.told, memory.reply) for memory in remembered]
    asked = [rng.choice(CHAT_TURNS)(rng) for _ in range(count)]
    pairs += [(turn.question, turn.answer) for turn in asked]
    rng.shuffle(pairs)
    if remembered and rng.random() < 0.8:
        memory = remembered[0]
        last = Turn(memory.asked, memory.answer, "The user told me before.", memory.key)
        if rng.random() < 0.1:
            return sample_of(rng, last._replace(question=f"{memory.told} {memory.asked}"))
    else:
        last = rng.choice((*CHAT_TURNS, turns.tale))(rng)
    earlier = [m for question, answer in pairs for m in (user(question), assistant(answer))]
    return sample_of(rng, last, earlier)


def tool_chat(rng: random.Random) -> Sample:
    """A finished tool round followed by another question, with or without a call."""
    turn, made = asked_calls(rng)
    done, answer = tool_round(rng, turn, made)
    earlier = [*done, assistant(answer.answer)]
    call = made[-1]
    if call.purpose in calls.PARALLEL_FORMS and len(call.arguments) == 1 and rng.random() < 0.7:
        call = calls.with_argument(rng, call)
        (value,) = call.arguments.values()
        last = calls.call_turn([call], rng.choice(calls.FOLLOW_UPS).format(value))
    else:
        last = turn_without_tool(rng)
    if rng.random() < 0.3:
        first = turn_without_tool(rng)
        earlier = [user(first.question), assistant(first.answer), *earlier]
    tools = toolkit.with_distractors(rng, made, rng.choice((0, 0, 1)), [*overlap(made), "search"])
    return sample_of(rng, last, earlier, tools)


def turn_without_tool(rng: random.Random) -> Turn:
    """A turn that no function of any family could answer."""
    while (turn := rng.choice(CHAT_TURNS)(rng)).key.startswith(("sum", "unknown")):
        pass
    return turn


def thinking(rng: random.Random) -> Sample:
    """Any other chat with the thought in think tags before the answer."""
    make = rng.choice(THOUGHT_OVER)
    sample = make(rng)
    # A thought belongs to the last answer alone.
    return replace(sample, thinking=True, learn_history=False)


THOUGHT_OVER: tuple[Callable[[random.Random], Sample], ...] = (
    *(single(make) for make in CHAT_TURNS), single(turns.addition), single(turns.tale), json_answer,
    tool_call, tool_call, tool_call, no_tool, no_tool, tool_result, multi_turn,
)  # fmt: skip
