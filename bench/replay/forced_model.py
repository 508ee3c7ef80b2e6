"""A model that is forced to generate a given text, at the cost of its own computation."""

from __future__ import annotations

import statistics
import time
from array import array
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bench.common.model_wrapper import ModelWrapper
from fastovms.config import DEFAULT_TOKEN_BUDGET
from fastovms.engine.model.model import Model, RawLogits
from fastovms.engine.model.step_inputs import StepInputs, StepLayout
from fastovms.engine.sequence import Sequence as EngineSequence

_NUM_MEASURED: Final = 3
"""The number of tokens of a step with a part of a prompt."""

_LIKELIEST: Final = np.float32(1e30)
"""The logit of the forced token. It is a finite number, as logits must be."""

_LIKELIEST_BITS: Final = np.uint16(_LIKELIEST.view(np.uint32) >> 16)
"""The same number in bfloat16."""


class ForcedModel(ModelWrapper):
    """Computes the steps of another model, and makes the next token of each sequence's text the
    most likely one.

    Rows after drafted tokens also get the text's token: after a wrong draft, the engine ignores the
    rows behind it. Prompt tokens without requested logits are not computed; their keys and values
    change the cost of no later step. `clock` advances as if they had been computed, so that an
    engine learns their cost.

    Attributes:
        texts: the token ids of prompt and answer, by request.
        running: the engine's running sequences, which identify the rows of a step.
    """

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.texts: dict[str, Sequence[int]] = {}
        self.running: list[EngineSequence] = []
        self._prompt_token_seconds = 0.0
        self._seconds_left_out = 0.0

    def allocate_cache(self, num_blocks: int) -> None:
        """Allocates the cache filled with zeros, because steps read unwritten blocks."""
        self._model.allocate_cache(num_blocks)
        for block_id in range(num_blocks):
            for memory in self._model.block_rows(block_id):
                memory[...] = 0
        self._prompt_token_seconds = self._measure_prompt_token()

    def _measure_prompt_token(self) -> float:
        """Returns the seconds of a prompt token in a chunk. The first run is not measured, because
        OpenVINO prepares its kernels in it; too long a time would keep drafts short."""
        num_tokens = DEFAULT_TOKEN_BUDGET
        num_blocks = -(-num_tokens // self.block_size)
        layout = StepLayout(self.block_size)
        layout.add(array("q", range(num_tokens)), 0, num_tokens, array("i", range(num_blocks)))
        inputs = layout.finish(array("q", [num_tokens - 1]))
        seconds = []
        for _ in range(1 + _NUM_MEASURED):
            start = time.perf_counter()
            self._model.infer(inputs)
            seconds.append(time.perf_counter() - start)
        return statistics.median(seconds[1:]) / num_tokens

    def clock(self) -> float:
        """Returns the time like `time.perf_counter`, plus that of the tokens that were not
        computed."""
        return time.perf_counter() + self._seconds_left_out

    def infer(self, inputs: StepInputs) -> RawLogits:
        token_ids = self._next_token_ids(inputs)
        num_left_out = len(inputs.input_ids) - len(token_ids)
        if num_left_out:
            self._seconds_left_out += num_left_out * self._prompt_token_seconds
            inputs = _sampled_part(inputs)
        if not len(token_ids):
            return np.empty((0, 0), np.float32)
        logits = self._model.infer(inputs)
        likeliest = _LIKELIEST if logits.dtype == np.float32 else _LIKELIEST_BITS
        logits[np.arange(len(token_ids)), token_ids] = likeliest
        return logits

    def _next_token_ids(self, inputs: StepInputs) -> NDArray[np.int64]:
        """Returns the next token of the sequence after each row: int64 [R]."""
        texts = {
            s.block_table[s.num_computed_tokens // self.block_size]: self.texts[s.request_id]
            for s in self.running
            if len(s.block_table) > s.num_computed_tokens // self.block_size
        }  # the first block that a step writes to for a sequence is no other one's
        written = inputs.block_indices[
            inputs.past_lens // self.block_size + inputs.block_indices_begins[:-1]
        ].tolist()
        sampled = inputs.sampled_token_indices
        owners = np.searchsorted(inputs.subsequence_begins, sampled, side="right") - 1
        positions = inputs.position_ids[sampled] + 1
        return np.array(
            [
                _token_at(texts[written[owner]], position)
                for owner, position in zip(owners.tolist(), positions.tolist(), strict=True)
            ],
            np.int64,
        )


def _token_at(text: Sequence[int], position: int) -> int:
    """Returns a token of a text, or any token after its end, which wrong drafts may reach."""
    return text[position] if position < len(text) else 0


def _sampled_part(inputs: StepInputs) -> StepInputs:
    """Returns the inputs without the tokens whose logits are not requested. Requested ones are the
    last tokens of a sequence."""
    sampled = inputs.sampled_token_indices
    begins = np.searchsorted(sampled, inputs.subsequence_begins)
    num_tokens = np.diff(begins)
    (kept,) = num_tokens.nonzero()
    num_left_out = np.diff(inputs.subsequence_begins) - num_tokens
    tables = [
        inputs.block_indices[inputs.block_indices_begins[i] : inputs.block_indices_begins[i + 1]]
        for i in kept
    ]
    return inputs._replace(
        input_ids=inputs.input_ids[sampled],
        position_ids=inputs.position_ids[sampled],
        past_lens=(inputs.past_lens + num_left_out)[kept].astype(np.int32),
        subsequence_begins=_begins(num_tokens[kept]),
        block_indices=np.concatenate(tables) if tables else inputs.block_indices[:0],
        block_indices_begins=_begins([len(table) for table in tables]),
        sampled_token_indices=np.arange(len(sampled), dtype=np.int64),
        sequence_lens=inputs.sequence_lens[kept],
    )


def _begins(lengths: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int32]:
    """Returns the offsets of successive parts with these lengths, and the end of the last one."""
    return np.cumsum([0, *lengths], dtype=np.int32)
