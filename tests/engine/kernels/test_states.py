"""Convolutions, gated delta rules and selective scans that continue from states of texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest
from numpy.typing import NDArray

from fastovms.engine.kernels.instructions import StepField
from fastovms.engine.kernels.states import convolve, gated_delta, selective_scan

WIDTH, SIZE, INTERVAL = 40, 3, 4
PAST_LENS = (0, 5, 7)
BEGINS = (0, 6, 7, 9)
ROWS = (9, 0, 1, 2, 3, 4, 5, 6)
"""Each sequence reads the first of its rows and writes the others."""
ROW_BEGINS = (0, 3, 5, 8)


@numba.njit
def run(step: Any, *given: Any) -> None:
    convolve(step, *given)


@numba.njit
def run_delta(step: Any, *given: Any) -> None:
    gated_delta(step, *given)


@numba.njit
def run_scan(step: Any, *given: Any) -> None:
    selective_scan(step, *given)


def step_fields() -> tuple[NDArray[np.int64], object]:
    """Returns the fields of a step, and the arrays that must live as long."""
    inputs = {
        StepField.SEQUENCE_BEGINS: np.array(BEGINS, np.int32),
        StepField.PAST_LENS: np.array(PAST_LENS, np.int32),
        StepField.STATE_ROWS: np.array(ROWS, np.int32),
        StepField.STATE_ROW_BEGINS: np.array(ROW_BEGINS, np.int32),
        StepField.STATE_INTERVALS: np.full(len(PAST_LENS), INTERVAL, np.int32),
    }
    step = np.zeros(StepField.CACHES, np.int64)
    for field, values in inputs.items():
        step[field] = values.ctypes.data
    step[StepField.NUM_SEQUENCES] = len(PAST_LENS)
    return step, inputs


def rounded(values: NDArray[np.float32], bits: int) -> NDArray[Any]:
    """Returns numbers with a table's precision: f32, or its upper 16 bits."""
    if bits == 32:
        return values.copy()
    whole = values.view(np.uint32)
    upper: NDArray[np.uint16] = ((whole + 0x7FFF + (whole >> 16 & 1)) >> 16).astype(np.uint16)
    return upper


def read(table: NDArray[Any]) -> NDArray[np.float32]:
    if table.dtype == np.float32:
        return table
    return (table.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("bits", [32, 16])
def test_states_are_stored_at_intervals_and_ends(bits: int) -> None:
    rng = np.random.default_rng(0)
    table = rounded(rng.normal(size=(10, WIDTH, SIZE)).astype(np.float32), bits)
    source = rng.normal(size=(BEGINS[-1], WIDTH)).astype(np.float32)
    weights = rng.normal(size=(SIZE, WIDTH)).astype(np.float32)
    added = rng.normal(size=WIDTH).astype(np.float32)
    expected = np.empty_like(source)
    states = read(table).copy()
    for n, past in enumerate(PAST_LENS):
        rows = iter(ROWS[ROW_BEGINS[n] : ROW_BEGINS[n + 1]])
        text = states[next(rows)].T
        for row in range(BEGINS[n], BEGINS[n + 1]):
            text = np.concatenate([text[1:], source[row : row + 1]])
            expected[row] = (text * weights).sum(0) + added
            past += 1
            if past % INTERVAL == 0 or row == BEGINS[n + 1] - 1:
                states[next(rows)] = read(rounded(text.T.copy(), bits))
    step, _inputs = step_fields()
    found = np.zeros_like(source)
    for first, end in ((0, 32), (32, WIDTH)):
        run(
            *(step, table.ctypes.data, bits, source.ctypes.data, WIDTH, found.ctypes.data, WIDTH),
            *(WIDTH, first, end, SIZE, weights.ctypes.data, added.ctypes.data),
        )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(read(table), states)


HEADS, KEY, SUMS, VALUE = 2, 8, 4, 6


def computed(
    table: NDArray[Any], bits: int, update: Callable[[Any, int], Any]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Returns the results of all rows, and the table after them. `update` returns a memory and the
    result after a row."""
    found = np.empty((BEGINS[-1], SUMS, VALUE), np.float32)
    states = read(table).copy()
    for n, past in enumerate(PAST_LENS):
        rows = iter(ROWS[ROW_BEGINS[n] : ROW_BEGINS[n + 1]])
        memory = states[next(rows)]
        for row in range(BEGINS[n], BEGINS[n + 1]):
            memory, found[row] = update(memory, row)
            past += 1
            if past % INTERVAL == 0 or row == BEGINS[n + 1] - 1:
                states[next(rows)] = read(rounded(memory.astype(np.float32), bits))
    return found, states


@pytest.mark.parametrize("bits", [32, 16])
@pytest.mark.parametrize("is_normalized", [True, False])
def test_memories_of_the_delta_rule_are_stored_at_intervals_and_ends(
    bits: int, is_normalized: bool
) -> None:
    rng = np.random.default_rng(0)
    table = rounded(rng.normal(size=(10, SUMS, VALUE, KEY)).astype(np.float32), bits)
    width = 2 * HEADS * KEY + SUMS * (VALUE + 2)
    source = rng.normal(0, 0.5, (BEGINS[-1], width)).astype(np.float32)
    cuts = np.cumsum([HEADS * KEY, HEADS * KEY, SUMS * VALUE, SUMS])
    queries, keys, values, gates, shares = np.split(source, cuts, -1)
    queries, keys = (one.reshape(-1, HEADS, KEY).repeat(2, 1) for one in (queries, keys))
    if is_normalized:
        queries, keys = (
            one / np.sqrt(np.square(one).sum(-1, keepdims=True) + 1e-6) for one in (queries, keys)
        )

    def update(memory: Any, row: int) -> Any:
        memory = memory * np.exp(gates[row])[:, None, None]
        known = np.einsum("hvk,hk->hv", memory, keys[row])
        added = (values[row].reshape(SUMS, VALUE) - known) * shares[row][:, None]
        memory = memory + added[..., None] * keys[row][:, None]
        return memory, np.einsum("hvk,hk->hv", memory, queries[row]) / np.sqrt(KEY)

    expected, states = computed(table, bits, update)
    step, _inputs = step_fields()
    found = np.zeros_like(expected)
    for head in range(SUMS):
        run_delta(
            *(step, table.ctypes.data, bits, source.ctypes.data, width, found.ctypes.data),
            *(SUMS * VALUE, head, HEADS, KEY, SUMS, VALUE, np.float32(1e-6), int(is_normalized)),
        )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(read(table), states, rtol=1e-5 if bits == 32 else 0.01, atol=1e-5)


@pytest.mark.parametrize("bits", [32, 16])
def test_memories_of_selective_scans_are_stored_at_intervals_and_ends(bits: int) -> None:
    rng = np.random.default_rng(0)
    table = rounded(rng.normal(size=(10, SUMS, VALUE, KEY)).astype(np.float32), bits)
    decays = -rng.uniform(0.1, 2, SUMS).astype(np.float32)
    parts = [SUMS, HEADS * KEY, SUMS * VALUE, HEADS * KEY]
    source = rng.normal(0, 0.5, (BEGINS[-1], sum(parts))).astype(np.float32)
    times, keys, values, queries = np.split(source, np.cumsum(parts[:3]), -1)
    keys, queries = (one.reshape(-1, HEADS, KEY).repeat(2, 1) for one in (keys, queries))

    def scan(memory: Any, row: int) -> Any:
        memory = memory * np.exp(decays * times[row])[:, None, None]
        added = values[row].reshape(SUMS, VALUE) * times[row][:, None]
        memory = memory + added[..., None] * keys[row][:, None]
        return memory, np.einsum("hvk,hk->hv", memory, queries[row])

    expected, states = computed(table, bits, scan)
    step, _inputs = step_fields()
    found = np.zeros_like(expected)
    for head in range(SUMS):
        run_scan(
            *(step, table.ctypes.data, bits, source.ctypes.data, sum(parts), found.ctypes.data),
            *(SUMS * VALUE, head, SUMS, VALUE, HEADS, KEY, decays.ctypes.data),
        )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(read(table), states, rtol=1e-5 if bits == 32 else 0.01, atol=1e-5)
