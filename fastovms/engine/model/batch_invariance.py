"""Keeps a token's logits the same to the last bit, whatever else a step has in it.

OpenVINO's CPU kernels sum a row of a matrix product in an order that does not depend on the other
rows, and attention likewise, but for one case each: a product of a single row, and attention of a
sequence that has a single token in the step, are computed by kernels of their own. So a sequence
whose text is alone, or is generated token by token, would differ in its last bits from the same one
in a crowd, or computed anew in chunks. (Measured with OpenVINO 2026.4 and AVX-512, f32 throughout,
in crowds of 1 to 64 and chunks of 1 to 400 tokens; `bench.determinism` measures it anew.)

The remedy: nothing is ever single. A sequence with one token gets a second one after it, which is
thrown away: attention is causal, so the first one does not see it, and the next step overwrites
what it leaves in the cache. The state after it, in models that have states, goes into a row of its
own, which nobody reads.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastovms.engine.model.step_inputs import StepInputs


def without_single_rows(
    inputs: StepInputs, *, block_size: int, spare_block: int, first_second_row: int = 0
) -> StepInputs:
    """Returns inputs in which nothing is single: the token of each sequence that has only one is
    doubled, and so is the index of a sampled token that is the only one, so that there is a second
    row of logits, which nobody reads.

    Args:
        spare_block: an unused block, for doubles that would be the first token in a block.
        first_second_row: see `StateRows`.
    """
    begins, block_begins = inputs.subsequence_begins, inputs.block_indices_begins
    is_single = np.diff(begins) == 1
    sampled = inputs.sampled_token_indices
    if is_single.any():
        singles = begins[:-1][is_single]
        copies = np.ones(len(inputs.input_ids), np.int64)
        copies[singles] = 2
        double_position = inputs.past_lens[is_single] + 1
        needs_block = np.zeros(len(is_single), np.bool_)
        needs_block[is_single] = double_position % block_size == 0
        longest = max(int(inputs.max_context_len), int(double_position.max()) + 1)
        sampled = sampled + np.searchsorted(singles, sampled)
        inputs = inputs._replace(
            input_ids=inputs.input_ids.repeat(copies),
            position_ids=inputs.position_ids.repeat(copies),
            subsequence_begins=_widened(begins, is_single),
            block_indices=np.insert(
                inputs.block_indices, block_begins[1:][needs_block], spare_block
            ),
            block_indices_begins=_widened(block_begins, needs_block),
            max_context_len=np.array(longest, np.int32),
            sampled_token_indices=sampled,
        )
        if len(inputs.state_rows):
            inputs = _with_second_states(inputs, is_single, first_second_row)
    if len(sampled) == 1:
        inputs = inputs._replace(sampled_token_indices=sampled.repeat(2))
    return inputs


def _with_second_states(
    inputs: StepInputs, is_doubled: NDArray[np.bool_], first_second_row: int
) -> StepInputs:
    """Returns inputs in which the state after the first of two tokens goes where it went, and the
    one after the double into the second row of the same block."""
    begins = inputs.state_row_begins
    ends = begins[1:][is_doubled]
    second_rows = inputs.state_rows[ends - 1] + first_second_row
    return inputs._replace(
        state_rows=np.insert(inputs.state_rows, ends, second_rows),
        state_row_begins=_widened(begins, is_doubled),
        state_intervals=np.where(is_doubled, 1, inputs.state_intervals).astype(np.int32),
    )


def _widened(begins: NDArray[np.int32], has_one_more: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Returns where parts begin once some of them have become longer by one."""
    widened = begins.copy()
    widened[1:] += np.cumsum(has_one_more, dtype=begins.dtype)
    return widened
