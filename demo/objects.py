"""Requests for JSON and the compact objects that answer them, values copied from the question."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from demo import words
from demo.turns import Turn, styled

# Attribute: the word for it, a value, and a clause that states the value of a person named before.
PERSON: dict[str, tuple[Callable[[random.Random], Any], tuple[str, ...]]] = {
    "age": (lambda rng: rng.randint(1, 99), ("is {0} years old", "is {0}", "is aged {0}")),
    "city": (words.a_city, ("lives in {0}", "comes from {0}", "is from {0}")),
    "job": (lambda rng: rng.choice(words.JOBS), ("works as a {0}", "is a {0}")),
    "pet": (lambda rng: rng.choice(words.ANIMALS), ("has a {0}", "owns a {0}")),
    "color": (lambda rng: rng.choice(words.COLORS), ("likes {0}", "loves the color {0}")),
    "language": (lambda rng: rng.choice(words.LANGUAGES), ("speaks {0}", "learns {0}")),
    "height": (lambda rng: rng.randint(90, 210), ("is {0} cm tall",)),
}

ASK_KEYS = (
    "Give me a JSON object with {0}.", "Answer as JSON with the keys {0}.", "Return JSON with {0}.",
    "Give me a JSON object with the keys {0}.", "Write a JSON object with {0}.",
    "Respond in JSON with {0}.", "Output JSON with the fields {0}.", "Use JSON with the keys {0}.",
    "Reply with a JSON object with the keys {0}.", "Extract {0} as JSON.",
)  # fmt: skip
ASK_ANY = ("Answer as JSON.", "Give me a JSON object.", "Give me that as JSON.", "Return JSON.",
           "Respond with a JSON object.", "Convert this to JSON.", "Extract the data as JSON.",
           "Write it as JSON.", "Reply as JSON.", "Give me JSON.",
           "Output JSON.",
           "In JSON, please.", "Extract the information.")  # fmt: skip
JSON_SYSTEMS = ("Answer only with JSON.", "You answer in JSON.", "Respond with a JSON object.",
                "Extract the data as JSON.", "Always reply in JSON.", "Extract the information.",
                "Extract the event information.", "You output JSON.")  # fmt: skip


def compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def listed(rng: random.Random, items: list[str]) -> str:
    """`a, b and c`, with commas alone, or with the items in quotes."""
    if rng.random() < 0.15:
        items = [f'"{item}"' for item in items]
    if len(items) == 1 or rng.random() < 0.2:
        return ", ".join(items)
    return f"{', '.join(items[:-1])} and {items[-1]}"


def joined(rng: random.Random, clauses: list[str]) -> str:
    return ", ".join(clauses[:-1]) + rng.choice((" and ", ", ")) + clauses[-1]


def person(rng: random.Random) -> tuple[str, dict[str, Any], list[str]]:
    """A statement about a person, the object it makes and the keys in the order stated."""
    name = words.a_name(rng)
    attributes = rng.sample(list(PERSON), rng.choice((1, 1, 2, 3)))
    data: dict[str, Any] = {"name": name}
    clauses = []
    for attribute in attributes:
        value_of, forms = PERSON[attribute]
        data[attribute] = value_of(rng)
        clauses.append(rng.choice(forms).format(data[attribute]))
    statement = clauses[0] if len(clauses) == 1 else joined(rng, clauses)
    return f"{name} {statement}", data, list(data)


def things(rng: random.Random) -> tuple[str, dict[str, Any], list[str]]:
    """Arbitrary keys with their values, so that keys are copied too."""
    keys = [key if rng.random() < 0.88 else words.invented_word(rng)
            for key in rng.sample(words.FIELDS, rng.choice((1, 2, 2, 3)))]  # fmt: skip
    data = {key: any_value(rng) for key in keys}
    form = rng.choice(("{0} is {1}", "the {0} is {1}", "{0} = {1}", "{0}: {1}", "{0} {1}"))
    clauses = [form.format(key, spoken(value)) for key, value in data.items()]
    statement = clauses[0] if len(clauses) == 1 else joined(rng, clauses)
    return statement[0].upper() + statement[1:], data, keys


def any_value(rng: random.Random) -> Any:
    kind = rng.random()
    if kind < 0.35:
        return rng.randrange(10 ** rng.randint(1, 4))
    if kind < 0.45:
        return rng.random() < 0.5
    if kind < 0.6:
        return rng.choice(words.COLORS)
    if kind < 0.75:
        return words.a_name(rng)
    if kind < 0.9:
        return words.a_word(rng)
    return rng.choice(words.CITIES)


def spoken(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def about(rng: random.Random) -> Turn:
    """Statement and request, in either order, with the keys named or not."""
    statement, data, keys = (person if rng.random() < 0.6 else things)(rng)
    if rng.random() < 0.55:
        if rng.random() < 0.3:
            rng.shuffle(keys)
        if len(keys) > 2 and rng.random() < 0.3:
            keys.pop()
        request = rng.choice(ASK_KEYS).format(listed(rng, keys))
    else:
        request = rng.choice(ASK_ANY)
    answer = {key: data[key] for key in keys}
    question = f"{statement}. {request}" if rng.random() < 0.6 else f"{request} {statement}."
    return turn(question, answer)


def person_request(rng: random.Random) -> Turn:
    """`Give me a JSON object with name and age of Ann, who is 7.`"""
    name = words.a_name(rng)
    attribute = rng.choice(list(PERSON))
    value_of, forms = PERSON[attribute]
    value = value_of(rng)
    request = rng.choice(ASK_KEYS).format(
        rng.choice(("name and {0}", "the name and {0}", "name, {0}"))
    )
    request = request.format(attribute).rstrip(".")
    clause = rng.choice(forms).format(value)
    link = rng.choice((" of {0}, who {1}.", " for {0}, who {1}.", " of {0} who {1}.", ": {0} {1}."))
    return turn(request + link.format(name, clause), {"name": name, attribute: value})


def name_and_number(rng: random.Random) -> Turn:
    """`... of Ann, 7` and `... of Ann (7)`: the shortest way to say it."""
    name, age = words.a_name(rng), rng.randint(1, 99)
    request = rng.choice(ASK_KEYS).format("name and age").rstrip(".")
    link = rng.choice((" of {0}, {1}.", " of {0} ({1}).", " for {0}, age {1}.",
                       " of {0}, {1} years old.",
                       ": {0}, {1}", " of {0} aged {1}."))  # fmt: skip
    return turn(request + link.format(name, age), {"name": name, "age": age})


def capital_object(rng: random.Random) -> Turn:
    country, city = rng.choice(list(words.CAPITALS.items()))
    form = rng.choice((
        "What is the capital of {0}? Answer as JSON.",
        "Answer in JSON: what is the capital of {0}?",
        "Give me a JSON object with country and capital of {0}.",
        "Return JSON with the country {0} and its capital.", "The capital of {0} as JSON, please.",
        "Answer as JSON with the keys country and capital: {0}",
        "What is the capital of {0}? Give me a JSON object.",
    ))  # fmt: skip
    return turn(form.format(country), {"country": country, "capital": city})


def list_object(rng: random.Random) -> Turn:
    key = rng.choice(("items", "fruits", "words", "list", "things", words.invented_word(rng)))
    items = rng.sample(words.FRUITS + words.ANIMALS + words.COLORS, rng.randint(2, 4))
    if rng.random() < 0.1:
        items = [words.invented_word(rng) for _ in items]
    form = rng.choice((
        "Give me a JSON object with the list {1} under the key {0}.", "JSON with {0}: {1}.",
        "Put {1} into a JSON list with the key {0}.",
        "Return JSON with the key {0} and the items {1}.",
    ))  # fmt: skip
    return turn(form.format(key, joined(rng, items)), {key: items})


def event_object(rng: random.Random) -> Turn:
    """The calendar event that many client examples extract."""
    event, day = rng.choice(words.EVENTS), rng.choice(words.DAYS)
    people = [words.a_name(rng) for _ in range(rng.choice((1, 2, 2, 3)))]
    who = people[0] if len(people) == 1 else f"{', '.join(people[:-1])} and {people[-1]}"
    verb = "is" if len(people) == 1 else "are"
    fact = rng.choice((f"{who} {verb} going to {words.with_article(event)} on {day}.",
                       f"{who} will go to {words.with_article(event)} on {day}.",
                       f"{who} {verb} meeting for the {event} on {day}."))  # fmt: skip
    request = rng.choice((*ASK_ANY, "Extract the event as JSON.",
                          "Answer as JSON with the keys name, date and participants."))  # fmt: skip
    question = f"{fact} {request}" if rng.random() < 0.6 else f"{request} {fact}"
    return turn(question, {"name": event, "date": day, "participants": people})


def nested_object(rng: random.Random) -> Turn:
    name, age, city = words.a_name(rng), rng.randint(1, 99), words.a_city(rng)
    form = rng.choice((
        "{0} is {1} years old and lives in {2}. Give me JSON with a user object and the city.",
        "JSON with a user object (name and age) and the city: {0}, {1}, {2}.",
    ))  # fmt: skip
    return turn(form.format(name, age, city), {"user": {"name": name, "age": age}, "city": city})


def turn(question: str, answer: dict[str, Any]) -> Turn:
    text = compact(answer)
    keys = listed_plainly(list(answer))
    return Turn(question, text, f"The user wants JSON with {keys}.", f"json/{question}")


def listed_plainly(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def made_up_person(rng: random.Random) -> Turn:
    """No values given: any will do."""
    attribute = rng.choice(("age", "age", "city", "job"))
    form = rng.choice((*ASK_KEYS, "Generate a JSON object with keys {0}.", "Make up JSON with {0}.",
                       "Generate a JSON object with {0} of a person.", "Give me any JSON with {0}.",
                       "Invent a person as a JSON object with {0}."))  # fmt: skip
    data = {"name": rng.choice(words.NAMES), attribute: PERSON[attribute][0](rng)}
    made = turn(form.format(f"name and {attribute}"), data)
    return made._replace(key="made up")


KINDS = (about, about, about, about, person_request, name_and_number, name_and_number,
         capital_object, made_up_person, list_object, event_object,
         event_object, nested_object)  # fmt: skip


def json_turn(rng: random.Random) -> Turn:
    made = rng.choice(KINDS)(rng)
    if rng.random() < 0.1:
        made = made._replace(question=styled(rng, made.question))
    return made
