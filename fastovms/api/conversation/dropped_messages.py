"""Drops the oldest messages of a chat that the context has no room for: `truncation: auto`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fastovms.api.conversation.chat_messages import Message
from fastovms.api.request.prompting.prompts import Prompt
from fastovms.errors import CONTEXT_EXCEEDED, InvalidField

_FIRST_SPEAKERS = ("system", "developer")


def fitting(
    messages: Sequence[Message],
    make_prompt: Callable[[Sequence[Message]], Prompt],
    max_tokens: int,
) -> Prompt:
    """Returns the prompt of as many of the newest messages as fit, and of those at the beginning by
    which the system sets the rules. What is kept begins with a message of the user, where there is
    one, so that neither an answer nor the output of a tool stands without what it refers to.

    Args:
        make_prompt: takes time in proportion to the messages, and is called a few times. It raises
            InvalidField (`context_length_exceeded`) where there are far too many.
        max_tokens: how many the prompt may have.

    Raises:
        InvalidField: not even the last messages fit.
    """

    num_rules = 0
    while num_rules < len(messages) and messages[num_rules]["role"] in _FIRST_SPEAKERS:
        num_rules += 1
    starts = _starts(messages, num_rules)
    found: dict[int, Prompt] = {}

    def kept(index: int) -> list[Message]:
        return [*messages[:num_rules], *messages[starts[index] :]]

    def fits(index: int) -> bool:
        try:
            prompt = make_prompt(kept(index))
        except InvalidField as error:
            if error.code != CONTEXT_EXCEEDED:
                raise
            return False
        if len(prompt.token_ids) > max_tokens:
            return False
        found[index] = prompt
        return True

    low, high = 0, len(starts) - 1
    if low < high and not fits(low):
        low += 1
    while low < high and low not in found:
        middle = (low + high) // 2
        if fits(middle):
            high = middle
        else:
            low = middle + 1
    return found.get(low) or make_prompt(kept(low))


def _starts(messages: Sequence[Message], first: int) -> list[int]:
    """Returns where a chat may begin. The last of these is where the shortest one does."""
    users = [index for index in range(first, len(messages)) if messages[index]["role"] == "user"]
    others = [index for index in range(first, len(messages)) if messages[index]["role"] != "tool"]
    return [first, *[index for index in users or others if index > first]]
