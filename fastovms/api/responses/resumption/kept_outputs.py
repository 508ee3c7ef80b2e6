"""Writes what a model has said so that another process can hear it again, word for word: in the
same steps, with the same log probabilities."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from fastovms.params import FinishReason, GenerationOutput, TokenLogprobs

_LEVEL: Final = 1


class _Output(msgspec.Struct, array_like=True, omit_defaults=True):
    """A `GenerationOutput` of a request with one sample."""

    token_ids: list[int]
    num_generated_tokens: int
    finish_reason: FinishReason | None = None
    num_cached_tokens: int = 0
    stop_token_id: int | None = None
    num_prompt_tokens: int | None = None
    logprobs: list[tuple[int, float, int, list[int], list[float]]] = []


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[_Output]).decode


def pack_outputs(outputs: Iterable[GenerationOutput]) -> bytes:
    """Returns outputs of a request's one sample as `unpack_outputs` takes them."""
    return zlib.compress(_encode([_kept(output) for output in outputs]), _LEVEL)


def unpack_outputs(data: bytes) -> Sequence[GenerationOutput]:
    """Returns the outputs, without what only measures their process.

    Raises:
        ValueError: these are none.
    """
    try:
        return [_heard(output) for output in _decode(zlib.decompress(data))]
    except (zlib.error, msgspec.MsgspecError) as error:
        raise ValueError("what the model has said is not as it was kept") from error


def _kept(output: GenerationOutput) -> _Output:
    return _Output(
        list(output.token_ids),
        output.num_generated_tokens,
        output.finish_reason,
        output.num_cached_tokens,
        output.stop_token_id,
        output.num_prompt_tokens,
        [
            (one.token_id, one.logprob, one.rank, list(one.top_token_ids), list(one.top_logprobs))
            for one in output.logprobs
        ],
    )


def _heard(kept: _Output) -> GenerationOutput:
    return GenerationOutput(
        0,
        kept.token_ids,
        kept.finish_reason,
        kept.num_generated_tokens,
        kept.num_cached_tokens,
        kept.stop_token_id,
        logprobs=[TokenLogprobs(*one) for one in kept.logprobs],
        num_prompt_tokens=kept.num_prompt_tokens,
    )
