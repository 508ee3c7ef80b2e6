"""Holds what has been said in a chat, and what requests ask for beside it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from fastovms.errors import FastovmsError


class WrongInput(FastovmsError):
    """What was typed cannot be done; nothing has changed."""


def _number(value: str) -> float:
    """Raises ValueError: JSON has no such number."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError
    return number


def _integer(value: str) -> int:
    """Raises ValueError: it is none, or too large for those who read JSON."""
    integer = int(value)
    if not -(2**63) <= integer < 2**64:
        raise ValueError
    return integer


OPTIONS: Final[Mapping[str, Callable[[str], object]]] = {
    "temperature": _number,
    "top_p": _number,
    "top_k": _integer,
    "min_p": _number,
    "max_tokens": _integer,
    "seed": _integer,
    "frequency_penalty": _number,
    "presence_penalty": _number,
    "repetition_penalty": _number,
    "reasoning_effort": str,
}
"""Fields of requests that can be set, and how their values are read. The server judges them."""

Message = dict[str, Any]


class Dialogue:
    """The messages of a chat, and the options of its requests.

    Attributes:
        model: what requests ask for.
        system: the first message; None = there is none.
        tools: the functions that the model may call, as OpenAI's API has them.
    """

    def __init__(self, model: str, system: str | None = None) -> None:
        self.model = model
        self.system = system
        self.tools: list[Any] = []
        self.options: dict[str, object] = {}
        self.messages: list[Message] = []

    def body(self) -> dict[str, object]:
        """Returns the body of a request for the next answer, as a stream."""
        first = [] if self.system is None else [{"role": "system", "content": self.system}]
        return {
            "model": self.model,
            "messages": [*first, *self.messages],
            "stream": True,
            **({"tools": self.tools} if self.tools else {}),
            **self.options,
        }

    def set_option(self, name: str, value: str) -> None:
        """Sets an option, or leaves it to the server where the value is empty.

        Raises:
            WrongInput: there is no such option, or the value is none of it.
        """
        read = OPTIONS.get(name)
        if read is None:
            raise WrongInput(f"there is no option {name!r}, only {', '.join(OPTIONS)}")
        if not value:
            self.options.pop(name, None)
            return
        try:
            self.options[name] = read(value)
        except ValueError:
            kind = "an integer of 64 bits" if read is _integer else "a finite number"
            raise WrongInput(f"{name} must be {kind}, not {value!r}") from None

    def to_json(self) -> str:
        """Returns all of it but the model, for `restore`."""
        kept = {
            "system": self.system,
            "tools": self.tools,
            "options": self.options,
            "messages": self.messages,
        }
        return json.dumps(kept, indent=2, ensure_ascii=False)

    def restore(self, text: str) -> None:
        """Raises WrongInput: the text is none of `to_json`."""
        try:
            kept = orjson.loads(text)  # which refuses what no request can have, as lone surrogates
            system, tools = kept["system"], kept["tools"]
            options, messages = kept["options"], kept["messages"]
        except (ValueError, LookupError, TypeError):
            raise WrongInput("the file is no chat that was saved here") from None
        is_whole = (
            isinstance(system, str | None)
            and isinstance(tools, list)
            and isinstance(options, dict)
            and isinstance(messages, list)
            and all(isinstance(message, dict) and "role" in message for message in messages)
        )
        if not is_whole:
            raise WrongInput("the file is no chat that was saved here")
        self.system, self.tools, self.options, self.messages = system, tools, options, messages
