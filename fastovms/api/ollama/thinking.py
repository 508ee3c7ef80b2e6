"""Reads `think`: whether a model is to think before it answers, and how hard."""

from __future__ import annotations

from typing import Final

from fastovms.api.conversation.chat_prompt import TemplateFields
from fastovms.api.wire.bodies.body import show
from fastovms.errors import InvalidField

_EFFORTS: Final = ("low", "medium", "high", "max")


def thinking_fields(think: bool | str | None, name: str, *, can_think: bool) -> TemplateFields:
    """Returns what the template is told. Without `think` the model does as it usually does.

    Args:
        name: the model's, as the client calls it.
        can_think: whether thoughts are told from answers.

    Raises:
        InvalidField: there is no such value, or the model does not think.
    """
    if isinstance(think, str) and think not in _EFFORTS:
        words = ", ".join(_EFFORTS)
        raise InvalidField(
            f"think must be true, false or one of {words}, not {show(think)}", param="think"
        )
    if think and not can_think:
        raise InvalidField(f"think: {show(name)} does not support thinking", param="think")
    if isinstance(think, str):
        return TemplateFields(reasoning_effort=think)
    return TemplateFields(enable_thinking=think)
