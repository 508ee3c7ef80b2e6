"""A model whose logits are a function of the tokens that it finds in its cache, and which fails on
demand; and what a request must get from it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13

from fastovms.engine.model.kv_cache import CacheInput
from fastovms.engine.model.model import (
    CompiledVariants,
    ModelLayout,
    PagedGraph,
    PagedModel,
    Precisions,
    _Runners,
)
from fastovms.engine.model.step_inputs import StepInputs
from fastovms.params import ModelInfo, SamplingDefaults
from tests.fakes import EOS
from tests.simulation.world import current, running

VOCAB_SIZE: Final = EOS + 1

# First bytes of prompts, which in a chat come after "u:", that make the model fail.
NAN, STALL = b"\x01\x02"

STALL_SECONDS: Final = 3.0
HANG_SECONDS: Final = 100.0

MODEL_FAULTS: Final = ("raise", "hang", "nan")
"""How a model may fail from some time on."""

_LETTERS: Final = b"abcdefghijklmnopqrstuvwxyz .,"


def fault_of(context: Sequence[int]) -> int:
    """Returns which of the faults a prompt asks for; 0 = none."""
    first = context[2 if list(context[:2]) == [ord("u"), ord(":")] else 0]
    return first if first <= STALL else 0


def checksum_after(before: int, token: int) -> int:
    """Returns what the cache holds of a token: a checksum of it and of all before it."""
    return zlib.crc32(token.to_bytes(4), before)


def seen_after(before: int, checksum: int) -> int:
    """Returns a checksum of all that the cache holds up to a token, the token's `checksum` being
    the last. The next token depends on it, as it depends on every position in a real model."""
    return zlib.crc32(checksum.to_bytes(8, "little"), before)


def next_token(seen: int, last: int, seventh: int) -> int:
    """The likeliest token: mostly the one seven before, so that drafts are often right.

    Args:
        seen: see `seen_after`.
        last: the last token.
        seventh: the token seven before the one that is drawn; -1 = there is none.
    """
    if last == 0xC3:  # the second byte of a letter that has two
        return 0xA4
    if seventh >= 0 and seen % 5:
        return seventh if 32 <= seventh < 127 else _LETTERS[seen % len(_LETTERS)]
    if seen % 61 == 3:
        return EOS
    if seen % 13 == 1:
        return 0xC3
    return _LETTERS[seen % len(_LETTERS)]


def continue_greedily(prompt: Sequence[int], most: int, model: str) -> list[int]:
    """The tokens after a prompt, without the end of text."""
    context = list(prompt)
    checksum, seen = first_checksum(model), 0
    for token in prompt:
        checksum = checksum_after(checksum, token)
        seen = seen_after(seen, checksum)
    while len(context) < len(prompt) + most:
        token = next_token(seen, context[-1], context[-7] if len(context) > 7 else -1)
        if token == EOS:
            break
        context.append(token)
        checksum = checksum_after(checksum, token)
        seen = seen_after(seen, checksum)
    return context[len(prompt) :]


def first_checksum(model: str) -> int:
    return zlib.crc32(model.encode())


@dataclass(frozen=True)
class Pace:
    """Seconds that a step takes, and each of its tokens."""

    step: float
    token: float


_GRAPH: Final = PagedGraph(None, Path("model"), rope_switch_len=None, max_exact_len=None)


class SimModel(PagedModel):
    """A real `PagedModel` over simulated runners, which take virtual time for their steps.

    Args:
        compile_seconds: the time that OpenVINO's variants take to compile when they are needed;
            None = they are compiled.

    Attributes:
        fault: returns which of `MODEL_FAULTS` it has now; "" = none.
    """

    def __init__(
        self, block_size: int, pace: Pace, name: str, compile_seconds: float | None = None
    ) -> None:
        self.name = name
        self.fault: Callable[[], str] = lambda: ""
        self.pace = pace
        self.is_warm = False
        shape = (1, block_size, 1)
        inputs = [CacheInput(f"{kind}_cache.0", ov.Type.i64, shape) for kind in ("key", "value")]
        compiled: Any = SimpleNamespace(inputs=[_port(one) for one in inputs])
        variants = CompiledVariants(compiled, compiled, compiled)

        def compile_now() -> CompiledVariants:
            running().world.sleep(compile_seconds or 0.0)
            return variants

        super().__init__(
            variants if compile_seconds is None else None,
            device="CPU",
            precisions=Precisions("", {}),
            graph=_GRAPH,
            compile_now=compile_now,
            layout=ModelLayout(inputs, VOCAB_SIZE, 1),
        )
        self.bytes_per_block = 1024

    def _runners_of(self, variants: CompiledVariants) -> _Runners:
        runner = SimRunner(self)
        return _Runners(variants, runner, runner, runner)

    def available_memory(self) -> int:
        return 1 << 30

    def commit_ahead(self, num_used_blocks: int) -> bool:
        return False

    def forget_files(self) -> None:
        pass

    def allocate_cache(self, num_blocks: int) -> None:
        super().allocate_cache(num_blocks)
        for tensor in self._cache.tensors.values():
            tensor.data[...] = -1


def _port(cache: CacheInput) -> Any:
    port = opset13.parameter([-1, *cache.page_shape], cache.element_type).output(0)
    port.set_names({cache.name})
    return port


class SimRunner:
    """Computes the steps of a model in a cache that has a token and a checksum for each position.

    Args:
        speed: the factor on the model's speed.
    """

    max_context_len = max_long_chunk = hidden_states = None

    def __init__(self, model: SimModel, speed: float = 1.0) -> None:
        self._model = model
        self._speed = speed

    def set_tensors(self, tensors: Mapping[str, ov.Tensor]) -> None:
        if tensors:
            self._cache, self._checksums = (
                tensors[name].data.reshape(-1, self._model.block_size)
                for name in ("key_cache.0", "value_cache.0")
            )

    def infer(self, inputs: StepInputs) -> NDArray[np.float32]:
        model, size = self._model, self._model.block_size
        num_tokens = len(inputs.input_ids)
        thread = current()
        firsts = inputs.input_ids[(inputs.position_ids == 0) | (inputs.position_ids == 2)]
        if not model.is_warm:
            model.is_warm = num_tokens == 1  # the second step of the engine's warm-up
            firsts = firsts[:0]
        if thread is not None:
            seconds = (model.pace.step + model.pace.token * num_tokens) / self._speed
            if STALL in firsts:
                seconds += STALL_SECONDS
            if model.fault() == "hang":
                seconds += HANG_SECONDS
            thread.world.sleep(seconds)
            thread.world.note("step", *inputs.past_lens, "tokens", *inputs.input_ids)
        if model.fault() == "raise":
            raise RuntimeError("the device is gone")
        begins = inputs.subsequence_begins.tolist()
        bounds = inputs.block_indices_begins.tolist()
        positions, tokens = inputs.position_ids.tolist(), inputs.input_ids.tolist()
        sampled = {int(t): row for row, t in enumerate(inputs.sampled_token_indices)}
        logits = np.empty((len(sampled), VOCAB_SIZE), np.float32)
        for s in range(len(inputs.past_lens)):
            table = inputs.block_indices[bounds[s] : bounds[s + 1]]
            blocks = table.tolist()
            checksum = self._checksum_before(blocks, positions[begins[s]])
            for t in range(begins[s], begins[s + 1]):
                position, token = positions[t], tokens[t]
                checksum = checksum_after(checksum, token)
                block, offset = blocks[position // size], position % size
                self._cache[block, offset] = token
                self._checksums[block, offset] = checksum
                if t in sampled:
                    context = self._cache[table].reshape(-1)[: position + 1].tolist()
                    assert -1 not in context, "reads a position that was never written"
                    seen = zlib.crc32(self._checksums[table].reshape(-1)[: position + 1].data)
                    logits[sampled[t]] = self._logits(context, seen)
        return logits

    def _checksum_before(self, blocks: Sequence[int], position: int) -> int:
        if position == 0:
            return first_checksum(self._model.name)
        block, offset = divmod(position - 1, self._model.block_size)
        return int(self._checksums[blocks[block], offset])

    def _logits(self, context: Sequence[int], seen: int) -> NDArray[np.float32] | float:
        if self._model.fault() == "nan" or (fault_of(context) == NAN and len(context) > 12):
            return np.nan
        token = next_token(seen, context[-1], context[-7] if len(context) > 7 else -1)
        return _logits_of(token, len(context) % len(_OTHERS))


_OTHERS: Final = b"abcdefghijklmnopqrstuvwxyz"
"""Tokens that may be nearly as likely as the likeliest."""


@cache
def _logits_of(token: int, shift: int) -> NDArray[np.float32]:
    logits = np.full(VOCAB_SIZE, -30, np.float32)
    logits[token] = 3
    for step, logit in ((1, 2.5), (3, 2.0), (5, 1.5)):
        other = _OTHERS[(token * 7 + shift * step) % len(_OTHERS)]
        logits[other] = max(logits[other], logit)
    return logits


def model_info(name: str, max_model_len: int) -> ModelInfo:
    return ModelInfo(
        name=name,
        created=1_700_000_000,
        max_model_len=max_model_len,
        vocab_size=VOCAB_SIZE,
        eos_token_ids=frozenset({EOS}),
        defaults=SamplingDefaults(),
    )
