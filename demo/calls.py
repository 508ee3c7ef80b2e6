"""What the model writes around functions: calls, answers from results, refusals."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from demo import families, toolkit, words
from demo.objects import compact
from demo.toolkit import Call
from demo.turns import Turn, styled

NO_TOOL_ANSWER = "I have no tool for that."
CONDITIONS = ("sunny", "rainy", "cloudy", "windy", "foggy", "snowy", "clear", "stormy",
              "partly cloudy",
              "light rain", "overcast", "hot", "dry")  # fmt: skip
ERRORS = ("not found", "timeout", "no connection", "unknown city", "access denied", "invalid input",
          "service unavailable", "no such file")  # fmt: skip
DONE = ("ok", "OK", "done", "success", "sent", "Success", "true", "completed")

# Questions of one group could be answered by each other's functions.
GROUPS = (
    {"get_weather", "get_forecast", "set_temperature", "search"},
    {"search", "get_news", "get_user", "get_population", "get_stock_price", "translate",
     "get_distance", "book_flight", "get_joke", "get_location", "get_date", "get_time", "read_file",
     "get_order_status", "play_music", "convert_currency"},
    {"send_email", "send_message", "create_event", "set_timer", "set_alarm"},
    {"add", "multiply", "subtract", "divide"},
)  # fmt: skip


class Result(NamedTuple):
    """What a function returned and what the model says about it."""

    content: str
    answer: str


def overlapping(purpose: str) -> set[str]:
    return {purpose}.union(*(group for group in GROUPS if purpose in group))


def call_text(calls: Sequence[Call]) -> str:
    """The assistant's turn that makes `calls`, as the chat template renders string arguments."""
    return "\n".join(
        "<tool_call>\n"
        f'{{"name": "{call.name}", "arguments": {compact(call.arguments)}}}'
        "\n</tool_call>"
        for call in calls
    )


def call_message(rng: random.Random, calls: Sequence[Call], text_arguments: bool) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": rng.choice(("", None)),
        "tool_calls": [
            {
                "id": f"call_{index}",
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": compact(call.arguments) if text_arguments else call.arguments,
                },
            }
            for index, call in enumerate(calls)
        ],
    }


def call_reasoning(calls: Sequence[Call]) -> str:
    given = ", ".join(
        f"{name} {toolkit.said(value)}" for call in calls for name, value in call.arguments.items()
    )
    return f"The tool {calls[0].name} fits. I call it{f' with {given}' if given else ''}."


def call_turn(calls: Sequence[Call], question: str) -> Turn:
    key = "/".join(["call", *(call.key for call in calls)])
    return Turn(question, call_text(calls), call_reasoning(calls), key)


PARALLEL_FORMS = {
    "get_weather": ("What is the weather in {0} and {1}?", "What is the weather in {0} and in {1}?",
                    "Compare the weather in {0} and {1}.", "Weather in {0} and {1}?",
                    "How warm is it in {0} and in {1}?", "Is it raining in {0} or {1}?"),
    "get_time": ("What time is it in {0} and {1}?", "What is the time in {0} and in {1}?",
                 "Tell me the time in {0} and {1}."),
    "get_stock_price": ("What are the stock prices of {0} and {1}?", "Price of {0} and {1}?"),
    "get_population": ("How many people live in {0} and {1}?", "Population of {0} and {1}?"),
}  # fmt: skip
FOLLOW_UPS = ("And in {0}?", "And what about {0}?", "What about {0}?", "And {0}?", "Now for {0}.",
              "How about {0}?")  # fmt: skip
ONE_VALUE = tuple(f for f in families.FAMILIES if f.names[0] in PARALLEL_FORMS)


def with_argument(rng: random.Random, call: Call) -> Call:
    """The same one-argument function asked for another value."""
    ((param, _),) = call.arguments.items()
    family = next(f for f in ONE_VALUE if f.names[0] == call.purpose)
    value = family.params[0].value(rng)
    return call._replace(arguments={param: value}, key=f"{call.name}/{value}")


def one_value_call(rng: random.Random) -> Call:
    family = rng.choice((ONE_VALUE[0], *ONE_VALUE))
    while len((call := toolkit.family_call(rng, family)).arguments) != 1:
        pass
    return call


def parallel_turn(rng: random.Random) -> tuple[Turn, list[Call]]:
    """One question, two calls of the same function."""
    first = one_value_call(rng)
    second = with_argument(rng, first)
    (a,), (b,) = first.arguments.values(), second.arguments.values()
    question = rng.choice(PARALLEL_FORMS[first.purpose]).format(a, b)
    return call_turn([first, second], styled(rng, question)), [first, second]


def lookup(rng: random.Random) -> tuple[Turn, Call]:
    """A question that needs a tool which is not there, and the call it would have been."""
    family = rng.choice(families.FAMILIES)
    while is_small_sum(call := toolkit.family_call(rng, family)):
        pass
    turn = Turn(
        styled(rng, call.question), NO_TOOL_ANSWER, "I have no tool that fits.", f"no/{call.key}"
    )
    return turn, call


def is_small_sum(call: Call) -> bool:
    """Whether the model could answer the call's question by itself."""
    return call.purpose == "add" and sum(call.arguments.values()) < 30


def result_of(rng: random.Random, call: Call) -> Result:
    if rng.random() < 0.08:
        error = rng.choice(ERRORS)
        content = rng.choice(
            (f"Error: {error}", json.dumps({"error": error}), compact({"error": error}))
        )
        return Result(content, f"The tool failed: {error}.")
    place = place_of(call)
    if call.purpose in ("get_weather", "get_forecast"):
        return weather_result(rng, place)
    if call.purpose == "get_time":
        time = families.clock(rng)
        content = rng.choice((time, json.dumps({"time": time}), compact({"time": time}),
                              json.dumps({"city": place, "time": time}), f'"{time}"'))  # fmt: skip
        return Result(content, f"It is {time} in {place}.")
    if call.purpose in ("send_email", "send_message", "set_light", "set_alarm", "set_timer",
                        "set_temperature", "create_event") or rng.random() < 0.1:  # fmt: skip
        status = rng.choice(DONE)
        key = rng.choice(("status", "result", "state"))
        return Result(rng.choice((status, json.dumps({key: status}))), "Done.")
    if call.purpose in ("add", "multiply", "subtract", "divide") or rng.random() < 0.5:
        return single_result(rng, families.amount(rng) if rng.random() < 0.7 else plain_value(rng))
    return table_result(rng)


def place_of(call: Call) -> str:
    return next((v for v in call.arguments.values() if isinstance(v, str)), "")


def weather_result(rng: random.Random, place: str) -> Result:
    degrees, sky = rng.randint(-15, 40), rng.choice(CONDITIONS)
    shape = rng.random()
    if shape < 0.3:
        content = rng.choice((f"{degrees} degrees and {sky}", f"{sky}, {degrees} degrees",
                              f"{degrees}°C, {sky}",
                              f"{degrees} C and {sky}", f"{sky} and {degrees} degrees",
                              f"It is {degrees} degrees and {sky} in {place}.",
                              f"{sky.capitalize()}, {degrees}°C",
                              f"{sky}, {degrees}C"))  # fmt: skip
        return Result(content, f"It is {degrees} degrees and {sky} in {place}.")
    heat = rng.choice(("temperature", "temperature", "temp", "temperature_c", "degrees", "celsius"))
    look = rng.choice(
        ("condition", "condition", "conditions", "sky", "weather", "description", "summary")
    )
    if shape < 0.42:
        content = rng.choice(
            (json.dumps({heat: degrees}), str(degrees), f"{degrees} degrees", f"{degrees}°C")
        )
        return Result(content, f"It is {degrees} degrees in {place}.")
    if shape < 0.5:
        return Result(rng.choice((json.dumps({look: sky}), sky)), f"It is {sky} in {place}.")
    items: list[tuple[str, Any]] = [(heat, degrees), (look, sky)]
    if rng.random() < 0.4:
        items.append((rng.choice(("humidity", "wind", "rain")), rng.randint(0, 99)))
    if rng.random() < 0.3:
        items.append(("unit", rng.choice(("C", "celsius"))))
    if rng.random() < 0.15:
        items = [(key, str(value).capitalize()) for key, value in items]
    rng.shuffle(items)
    if rng.random() < 0.5:
        items.insert(0, (rng.choice(("city", "location")), place))
    data = dict(items)
    content = json.dumps(data) if rng.random() < 0.65 else compact(data)
    return Result(content, f"It is {degrees} degrees and {sky} in {place}.")


def plain_value(rng: random.Random) -> str:
    return rng.choice(
        (words.a_word(rng), words.a_name(rng), families.code(rng), words.a_topic(rng))
    )


def single_result(rng: random.Random, value: int | float | str) -> Result:
    """One value, bare or under one key: `The result is 12.`"""
    key = rng.choice(("result", "result", "value", "answer", "sum", "output", words.a_word(rng)))
    content = rng.choice((str(value), str(value), json.dumps({key: value}), compact({key: value})))
    return Result(content, f"The result is {value}.")


def table_result(rng: random.Random) -> Result:
    """Several keys: told one after the other."""
    data = {
        key: rng.choice((families.amount, plain_value, words.a_city))(rng)
        for key in rng.sample(words.FIELDS, rng.randint(2, 3))
    }
    content = json.dumps(data) if rng.random() < 0.7 else compact(data)
    return Result(content, f"Here is the result: {', '.join(f'{k} {v}' for k, v in data.items())}.")
