"""Functions to call: schemas drawn from the known families, and invented ones to be read from."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from demo import words
from demo.families import FAMILIES, Family, Param, Value, amount, integer, letter_code


class Call(NamedTuple):
    """A function's schema with a question that fits it and the arguments the question gives."""

    schema: dict[str, Any]
    name: str
    arguments: dict[str, Any]
    question: str
    purpose: str
    key: str


# The value kinds of invented functions: the JSON type, a value, and how the user would say it.
INVENTED_TYPES: tuple[tuple[str, Value], ...] = (
    ("string", words.a_word),
    ("string", words.a_name),
    ("string", words.a_city),
    ("string", words.a_topic),
    ("string", lambda rng: words.a_topic(rng).capitalize()),
    ("string", letter_code),
    ("integer", integer(0, 999)),
    ("integer", integer(0, 20)),
    ("number", amount),
    ("boolean", lambda rng: rng.random() < 0.5),
)
OPTIONS = (("low", "medium", "high"), ("small", "large"), ("red", "green", "blue"), ("asc", "desc"),
           ("fast", "slow"), ("open", "closed"), ("day", "week", "month"))  # fmt: skip
INVENTED_LINKS = ("{p} {v}", "{p} {v}", "the {p} {v}", "{p}: {v}", "{p} = {v}", "{p} is {v}",
                  "{p} set to {v}")  # fmt: skip
INVENTED_FORMS = (
    "{verb} the {noun} with {args}.", "Please {verb} the {noun} with {args}.",
    "{verb} {noun}: {args}",
    "I want to {verb} the {noun}, {args}.", "Can you {verb} the {noun} with {args}?",
    "{verb} a {noun} with {args}.", "Use {name} with {args}.", "Call {name} with {args}.",
    "Run {name}: {args}", "{verb} {noun} {args}.",
)  # fmt: skip
BARE_FORMS = ("{verb} the {noun}.", "Please {verb} the {noun}.", "Can you {verb} the {noun}?",
              "Call {name}.", "I want to {verb} the {noun}.")  # fmt: skip


def family_call(rng: random.Random, family: Family) -> Call:
    """One function of the family, with names, order and descriptions drawn at random."""
    names = unique_names(rng, family.params)
    values = [param.value(rng) for param in family.params]
    index = rng.randrange(len(family.forms))
    form = family.forms[index]
    if rng.random() < 0.1 and all(isinstance(value, str) for value in values):
        form, values = form.lower(), [value.lower() for value in values]
    used = [i for i in range(len(values)) if f"{{{i}}}" in form]
    everywhere = [i for i in used if all(f"{{{i}}}" in other for other in family.forms)]
    shown = used if rng.random() < 0.5 else list(range(len(values)))
    properties = {
        names[i]: described(rng, prop_of(rng, family.params[i]), family.params[i].description)
        for i in shown
    }
    name = rng.choice(family.names)
    schema = function_schema(
        rng, name, rng.choice(family.descriptions), properties, [names[i] for i in everywhere]
    )
    arguments = {names[i]: values[i] for i in shown if i in used}
    question = form.format(*values)
    return Call(schema, name, arguments, question, family.names[0], f"{name}/{index}/{values}")


def invented_call(rng: random.Random) -> Call:
    verb = rng.choice(words.VERBS)
    noun = rng.choice(words.NOUNS) if rng.random() < 0.85 else words.invented_word(rng)
    name = rng.choice(
        (f"{verb}_{noun}", f"{verb}_{noun}", f"{noun}_{verb}", f"{verb}{noun.capitalize()}")
    )
    arguments: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    for field in rng.sample(words.FIELDS, rng.choice((0, 1, 1, 2, 2, 3))):
        param = field if rng.random() < 0.9 else words.invented_word(rng)
        kind, value_of = rng.choice(INVENTED_TYPES)
        value = value_of(rng)
        prop: dict[str, Any] = {"type": kind}
        if kind == "string" and rng.random() < 0.2:
            options = (
                rng.choice(OPTIONS)
                if rng.random() < 0.6
                else [words.invented_word(rng) for _ in range(rng.randint(2, 3))]
            )
            value = rng.choice(options)
            prop["enum"] = list(options)
        arguments[param] = value
        properties[param] = described(rng, prop, f"The {field} of the {noun}")
    forms = INVENTED_FORMS if arguments else BARE_FORMS
    link = rng.choice(INVENTED_LINKS)
    clauses = [link.format(p=p.replace("_", " "), v=said(v)) for p, v in arguments.items()]
    text = " and ".join(clauses) if rng.random() < 0.6 else ", ".join(clauses)
    question = rng.choice(forms).format(verb=verb, noun=noun, name=name, args=text)
    # The order of the schema, not of the question, is the order of the call.
    order = list(properties)
    if rng.random() < 0.3:
        rng.shuffle(order)
    schema = function_schema(
        rng, name, f"{verb.capitalize()} {words.with_article(noun)}",
        {p: properties[p] for p in order}, order,
    )  # fmt: skip
    return Call(
        schema, name, {p: arguments[p] for p in order}, question[0].upper() + question[1:],
        f"{verb} the {noun}", f"invented/{question}",
    )  # fmt: skip


def said(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def unique_names(rng: random.Random, params: Sequence[Param]) -> list[str]:
    """A name for each parameter; pairs such as a, b and from, to stay together."""
    if len(params) > 1 and len(params[0].names) == len(params[1].names):
        index = rng.randrange(len(params[0].names))
        names = [p.names[index] if index < len(p.names) else rng.choice(p.names) for p in params]
    else:
        names = [rng.choice(p.names) for p in params]
    return names if len(set(names)) == len(names) else [p.names[0] for p in params]


def prop_of(rng: random.Random, param: Param) -> dict[str, Any]:
    kind = "integer" if param.type == "number" and rng.random() < 0.2 else param.type
    prop: dict[str, Any] = {"type": kind}
    if param.names[0] == "unit" or (param.names[0] == "state" and rng.random() < 0.5):
        prop["enum"] = ["celsius", "fahrenheit"] if param.names[0] == "unit" else ["on", "off"]
    return prop


def described(rng: random.Random, prop: dict[str, Any], text: str) -> dict[str, Any]:
    if rng.random() < 0.6:
        return prop
    return {**prop, "description": text} if rng.random() < 0.8 else {"description": text, **prop}


def function_schema(
    rng: random.Random, name: str, description: str, properties: dict[str, Any], required: list[str]
) -> dict[str, Any]:
    """The OpenAI shape of a tool, with the keys that clients add or leave out."""
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if rng.random() < 0.15:
        parameters = {"properties": properties, "type": "object"}
    if required and rng.random() < 0.8:
        parameters["required"] = required
    if rng.random() < 0.2:
        parameters["additionalProperties"] = False
    function: dict[str, Any] = {"name": name}
    if rng.random() < 0.75:
        function["description"] = description
    function["parameters"] = parameters
    if rng.random() < 0.12:
        function["strict"] = True
    if rng.random() < 0.1:
        return {"function": function, "type": "function"}
    return {"type": "function", "function": function}


def any_call(rng: random.Random) -> Call:
    if rng.random() < 0.3:
        return invented_call(rng)
    # The weather is what most examples ask for.
    return family_call(rng, FAMILIES[0] if rng.random() < 0.2 else rng.choice(FAMILIES))


def with_distractors(
    rng: random.Random, calls: Sequence[Call], count: int, avoid: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """The schemas of `calls` among `count` others of other purposes, shuffled."""
    schemas = {call.name: call.schema for call in calls}
    purposes = {call.purpose for call in calls} | set(avoid)
    while len(schemas) < len({call.name for call in calls}) + count:
        other = any_call(rng)
        if other.purpose not in purposes and other.name not in schemas:
            purposes.add(other.purpose)
            schemas[other.name] = other.schema
    tools = list(schemas.values())
    rng.shuffle(tools)
    return tools
