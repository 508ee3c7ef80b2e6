"""The demo corpus: endless seeded conversations by category, with held-out combinations."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

from demo import calls, objects, toolkit, turns, words
from demo.stories import story
from demo.turns import Turn

HELD_OUT_SHARE = 10  # one combination in ten is never trained on


@dataclass(frozen=True)
class Sample:
    """A conversation up to the answer, and the answer.

    `messages` is empty for plain text, whose whole text is `target`. `learn_history` says that the
    earlier assistant turns are worded as the model should word them.
    """

    category: str
    target: str
    key: str
    messages: tuple[dict[str, Any], ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    thinking: bool = False
    exact: bool = True
    learn_history: bool = True

    @property
    def held_out(self) -> bool:
        return crc32(self.key.encode()) % HELD_OUT_SHARE == 0


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


def opening(rng: random.Random) -> list[dict[str, Any]]:
    system = a_system(rng)
    return [] if system is None else [{"role": "system", "content": system}]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def single(
    category: str, make: Callable[[random.Random], Turn]
) -> Callable[[random.Random], Sample]:
    """A category of one question and its answer."""

    def sample(rng: random.Random) -> Sample:
        turn = make(rng)
        return Sample(category, turn.answer, turn.key, (*opening(rng), user(turn.question)),
                      exact=turn.key != "story")  # fmt: skip

    return sample


def capital_either_way(rng: random.Random) -> Turn:
    return (turns.capital if rng.random() < 0.8 else turns.country)(rng)


def beyond(rng: random.Random) -> Turn:
    return turns.unknown(rng) if rng.random() < 0.6 else calls.lookup(rng)[0]


def json_sample(rng: random.Random) -> Sample:
    if rng.random() < 0.12:
        statement, data, _ = objects.person(rng)
        messages = (
            {"role": "system", "content": rng.choice(objects.JSON_SYSTEMS)},
            user(f"{statement}."),
        )
        return Sample("json", objects.compact(data), f"json/{statement}", messages)
    return single("json", objects.json_turn)(rng)


def plain_text(rng: random.Random) -> Sample:
    """Text without a chat format, for the completions endpoint."""
    kind = rng.random()
    if kind < 0.6:
        text = story(rng)
    elif kind < 0.8:
        countries = rng.sample(list(words.CAPITALS), rng.randint(1, 4))
        text = " ".join(f"The capital of {name} is {words.CAPITALS[name]}." for name in countries)
    elif kind < 0.9:
        start = rng.choice((0, 1, 1, rng.randint(1, 60)))
        text = ", ".join(str(n) for n in range(start, start + rng.randint(8, 30)))
    else:
        name, city = words.a_name(rng), words.a_city(rng)
        hello = rng.choice(("Hello, my", "Hello! My", "Hi, my", "My"))
        text = f"{hello} name is {name} and I live in {city}. I have a {rng.choice(words.ANIMALS)}."
    return Sample("plain text", text, f"plain/{text}", exact=False)


def tool_count(rng: random.Random) -> int:
    return rng.choice((0, 0, 1, 1, 2, 2, 3))


def tool_call(rng: random.Random) -> Sample:
    if rng.random() < 0.12:
        turn, made = calls.parallel_turn(rng)
    else:
        call = toolkit.any_call(rng)
        made = [call]
        question = call.question if rng.random() < 0.5 else turns.styled(rng, call.question)
        turn = calls.call_turn(made, question)
    tools = toolkit.with_distractors(rng, made, tool_count(rng), overlap(made))
    return Sample(
        "tool call", turn.answer, turn.key, (*opening(rng), user(turn.question)), tuple(tools)
    )


def overlap(made: list[toolkit.Call]) -> list[str]:
    """Purposes kept apart from the calls' own: the ones that only differ by a shade may meet."""
    purposes = {call.purpose for call in made}
    return ["search"] if purposes & calls.GROUPS[1] else []


def no_tool(rng: random.Random) -> Sample:
    """Tools are there, none fits: a plain answer."""
    if rng.random() < 0.6:
        turn = rng.choice(PLAIN_TURNS)(rng)
        avoid = {"search", "add", "multiply", "subtract", "divide"}
        if turn.key.startswith("unknown"):
            avoid |= calls.GROUPS[1]
    else:
        turn, call = calls.lookup(rng)
        avoid = calls.overlapping(call.purpose)
    tools = toolkit.with_distractors(rng, (), 1 + tool_count(rng), tuple(avoid))
    return Sample("no fitting tool", turn.answer, f"no tool/{turn.key}",
                  (*opening(rng), user(turn.question)), tuple(tools))  # fmt: skip


def tool_round(
    rng: random.Random, text_arguments: bool
) -> tuple[list[dict[str, Any]], str, list[toolkit.Call], str]:
    """Question, call and result as messages; the answer, the calls made and the key."""
    if rng.random() < 0.15:
        turn, made = calls.parallel_turn(rng)
    else:
        made = [toolkit.any_call(rng)]
        turn = calls.call_turn(made, made[0].question)
    results = [calls.result_of(rng, call) for call in made]
    messages = [user(turn.question), calls.call_message(rng, made, text_arguments)]
    for index, result in enumerate(results):
        messages.append(
            {"role": "tool", "tool_call_id": f"call_{index}", "content": result.content}
        )
    key = f"{turn.key}/{'/'.join(result.content for result in results)}"
    return messages, " ".join(result.answer for result in results), made, key


def tool_result(rng: random.Random) -> Sample:
    text_arguments = rng.random() < 0.6
    messages, answer, made, key = tool_round(rng, text_arguments)
    tools = toolkit.with_distractors(rng, made, rng.choice((0, 0, 1, 2)), overlap(made))
    return Sample("tool result", answer, key, (*opening(rng), *messages), tuple(tools),
                  learn_history=text_arguments)  # fmt: skip


PLAIN_TURNS: tuple[Callable[[random.Random], Turn], ...] = (
    turns.greeting, turns.identity, turns.capital, turns.addition, turns.counting, turns.echo,
    turns.unknown,
)  # fmt: skip
CHAT_TURNS = (*PLAIN_TURNS, objects.json_turn, turns.known_greeting, capital_either_way)


def multi_turn(rng: random.Random) -> Sample:
    return tool_chat(rng) if rng.random() < 0.3 else plain_chat(rng)


def plain_chat(rng: random.Random) -> Sample:
    """Two to five turns, often with something to remember."""
    remembered = [turns.memory(rng)] if rng.random() < 0.6 else []
    asked = [rng.choice(CHAT_TURNS)(rng) for _ in range(rng.choice((1, 1, 2, 2, 3)))]
    pairs = [(memory.told, memory.reply) for memory in remembered]
    pairs += [(turn.question, turn.answer) for turn in asked]
    rng.shuffle(pairs)
    key = asked[-1].key
    if remembered and rng.random() < 0.8:
        key = remembered[0].key
        pairs.append((remembered[0].asked, remembered[0].answer))
    elif rng.random() < 0.1:
        pairs.append((rng.choice(("Tell me a story.", "A short story, please.")), story(rng)))
        key = "story"
    else:
        last = rng.choice(CHAT_TURNS)(rng)
        pairs.append((last.question, last.answer))
        key = last.key
    messages = opening(rng)
    for question, answer in pairs[:-1]:
        messages += [user(question), assistant(answer)]
    return Sample("multi-turn", pairs[-1][1], f"chat/{key}", (*messages, user(pairs[-1][0])),
                  exact=key != "story")  # fmt: skip


def tool_chat(rng: random.Random) -> Sample:
    """A finished tool round followed by another question, with or without a call."""
    messages, answer, made, _ = tool_round(rng, text_arguments=True)
    before = rng.choice(CHAT_TURNS)(rng) if rng.random() < 0.3 else None
    call = made[-1]
    if call.purpose in calls.PARALLEL_FORMS and len(call.arguments) == 1 and rng.random() < 0.7:
        call = calls.with_argument(rng, call)
        (value,) = call.arguments.values()
        turn = calls.call_turn([call], rng.choice(calls.FOLLOW_UPS).format(value))
    else:
        turn = rng.choice(PLAIN_TURNS)(rng)
        while turn.key.startswith(("sum", "unknown")):
            turn = rng.choice(PLAIN_TURNS)(rng)
    tools = toolkit.with_distractors(rng, made, rng.choice((0, 0, 1)), [*overlap(made), "search"])
    earlier = [user(before.question), assistant(before.answer)] if before else []
    if before and before.key.startswith(("sum", "unknown")):
        earlier = []
    return Sample("multi-turn", turn.answer, f"chat/{turn.key}",
                  (*opening(rng), *earlier, *messages, assistant(answer), user(turn.question)),
                  tuple(tools))  # fmt: skip


def thinking(rng: random.Random) -> Sample:
    """The thought in think tags before the answer, for any kind of single question."""
    tools: tuple[dict[str, Any], ...] = ()
    if rng.random() < 0.25:
        call = toolkit.any_call(rng)
        turn = calls.call_turn([call], call.question)
        tools = tuple(toolkit.with_distractors(rng, [call], rng.choice((0, 0, 1)), overlap([call])))
    else:
        turn = rng.choice((*CHAT_TURNS, turns.addition, turns.addition, turns.tale))(rng)
    target = f"<think>\n{turn.reasoning}\n</think>\n\n{turn.answer}"
    return Sample("thinking", target, f"think/{turn.key}", (*opening(rng), user(turn.question)),
                  tools,
                  thinking=True, exact=turn.key != "story")  # fmt: skip


# Category: its share of the training samples and its generator.
CATEGORIES: dict[str, tuple[float, Callable[[random.Random], Sample]]] = {
    "greeting": (4, single("greeting", turns.greeting)),
    "identity": (4, single("identity", turns.identity)),
    "capital": (9, single("capital", capital_either_way)),
    "sum": (9, single("sum", turns.addition)),
    "counting": (6, single("counting", turns.counting)),
    "echo": (4, single("echo", turns.echo)),
    "beyond": (3, single("beyond", beyond)),
    "story": (7, single("story", turns.tale)),
    "plain text": (7, plain_text),
    "json": (13, json_sample),
    "tool call": (24, tool_call),
    "no fitting tool": (6, no_tool),
    "tool result": (9, tool_result),
    "thinking": (9, thinking),
    "multi-turn": (9, multi_turn),
}
STORY_KEYS = ("story", "think/story", "chat/story")


def draw(rng: random.Random, category: str, held_out: bool) -> Sample:
    """A sample of `category` on the wanted side of the split; stories have no held-out side."""
    make = CATEGORIES[category][1]
    while (sample := make(rng)).key not in STORY_KEYS and sample.held_out != held_out:
        pass
    return replace(sample, category=category)


def training_samples(rng: random.Random) -> Iterator[Sample]:
    """Samples of all categories by their shares, without end, none of them held out."""
    names = list(CATEGORIES)
    shares = [CATEGORIES[name][0] for name in names]
    while True:
        yield draw(rng, rng.choices(names, shares)[0], held_out=False)
