"""Reads the fields that embeddings, rerank and score share, and writes what their answers do: how
long texts may be, ids and usage."""

from __future__ import annotations

from fastovms.api.embeddings.embedding_schemas import EncodingFields
from fastovms.api.embeddings.input_texts import TextLimit
from fastovms.api.serving.served_encoder import ServedEncoder
from fastovms.api.wire.bodies.body import show
from fastovms.api.wire.client_ids import check_id
from fastovms.api.wire.dialect import Dialect
from fastovms.errors import InvalidField
from fastovms.params import ModelInfo

_SIDES = (None, "left", "right")


def read_limit(body: EncodingFields, model: ServedEncoder, num_added: int) -> TextLimit:
    """Reads how long a text may be.

    Args:
        num_added: the tokens that stand around it.

    Raises:
        InvalidField: a number is out of its range, or the side unknown.
    """
    side = body.truncation_side
    if side not in _SIDES:
        raise InvalidField(
            f'truncation_side must be "left" or "right", not {show(side)}', param="truncation_side"
        )
    kept, longest = body.truncate_prompt_tokens, model.info.max_model_len
    if kept is None:
        return TextLimit(
            _room(longest, num_added, model.info), model.config.truncate, side == "left"
        )
    if kept != -1 and not 1 <= kept <= longest:
        raise InvalidField(
            f"truncate_prompt_tokens must be -1 or from 1 to {longest}, the longest text of the "
            f"model, not {show(kept)}",
            param="truncate_prompt_tokens",
        )
    if kept == -1:
        kept = longest
    if kept <= num_added:
        raise InvalidField(
            f"truncate_prompt_tokens must be more than {num_added}, the tokens that stand around "
            f"each text, not {show(kept)}",
            param="truncate_prompt_tokens",
        )
    return TextLimit(kept - num_added, truncates=True, keeps_end=side == "left")


def _room(longest: int, num_added: int, info: ModelInfo) -> int:
    if longest <= num_added:
        raise InvalidField(f"the model {info.name} has no room for any text", param="model")
    return longest - num_added


def check_priority(body: EncodingFields, dialect: Dialect) -> None:
    """Raises InvalidField for a priority that no request may have, though none changes anything
    here."""
    value, allowed = body.priority, dialect.ranges["priority"]
    if value is not None and value not in allowed:
        raise InvalidField(f"priority must be {allowed}, not {show(value)}", param="priority")


def answer_id(body: EncodingFields, prefix: str, new_id: str) -> str:
    """Returns the id of an answer, with the rest that the client wants, or a new one.

    Raises:
        InvalidField: it is none that may stand in an answer.
    """
    given = body.request_id
    return f"{prefix}{new_id if given is None else check_id(given, 'request_id')}"


def encoding_usage(num_tokens: int) -> dict[str, int]:
    """Returns what an answer tells of the tokens that it took."""
    return {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
