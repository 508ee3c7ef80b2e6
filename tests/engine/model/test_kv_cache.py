"""Blocks of keys and values, in the host's memory or in a GPU's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
import pytest

from fastovms.engine.model import kv_cache
from fastovms.engine.model.kv_cache import CacheInput, HostCache, KvCache, RemoteCache, cache_inputs


class FakeRemoteTensor:
    """A region of an array, as `ov.RemoteTensor` is of the GPU's memory."""

    def __init__(self, base: Any, begin: Sequence[int], end: Sequence[int]) -> None:
        region = tuple(slice(b, e) for b, e in zip(begin, end, strict=True))
        self.data = base.data[region]

    def get_shape(self) -> tuple[int, ...]:
        return tuple(self.data.shape)

    def copy_from(self, other: FakeRemoteTensor) -> None:
        self.data[...] = other.data


class FakeContext:
    def create_tensor(
        self, element_type: ov.Type, shape: ov.Shape, properties: dict[str, object]
    ) -> FakeRemoteTensor:
        class Base:
            data = np.arange(np.prod(list(shape)), dtype=np.float32).reshape(list(shape))

        return FakeRemoteTensor(Base, [0] * len(shape), list(shape))


INPUTS = [
    CacheInput("key_cache.0", ov.Type.f32, (2, 8, 16)),
    CacheInput("value_cache.0", ov.Type.f32, (2, 16, 8)),
]


@pytest.mark.parametrize("place", ["host", "GPU"])
def test_a_block_is_copied_whole_and_alone(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.setattr(kv_cache.ov, "RemoteTensor", FakeRemoteTensor)
    monkeypatch.setattr(kv_cache.ov, "Coordinate", list)
    cache = HostCache(INPUTS, 4) if place == "host" else RemoteCache(INPUTS, 4, FakeContext())
    assert list(cache.tensors) == ["key_cache.0", "value_cache.0"]
    for tensor in cache.tensors.values():
        tensor.data[...] = np.arange(tensor.data.size).reshape(tensor.data.shape)
    before = {name: tensor.data.copy() for name, tensor in cache.tensors.items()}
    cache.copy_block(1, 3)
    for name, tensor in cache.tensors.items():
        np.testing.assert_array_equal(tensor.data[3], before[name][1])
        np.testing.assert_array_equal(tensor.data[:3], before[name][:3])


WITH_STATES = [
    CacheInput("key_cache.0", ov.Type.f32, (2, 8), num_pages=3),
    CacheInput("conv_state_table.0", ov.Type.f32, (5, 2)),
]


@pytest.mark.parametrize("place", ["host", "GPU"])
def test_states_are_copied_with_their_blocks_and_alone(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(kv_cache.ov, "RemoteTensor", FakeRemoteTensor)
    monkeypatch.setattr(kv_cache.ov, "Coordinate", list)
    if place == "host":
        cache: KvCache = HostCache(WITH_STATES, 4, 7)
    else:
        cache = RemoteCache(WITH_STATES, 4, FakeContext(), 7)  # type: ignore[arg-type]
    keys, states = (tensor.data for tensor in cache.tensors.values())
    assert (keys.shape, states.shape) == ((12, 2, 8), (7, 5, 2))
    for data in (keys, states):
        data[...] = np.arange(data.size).reshape(data.shape)
    old_keys, old_states = keys.copy(), states.copy()
    cache.copy_block(1, 3)
    np.testing.assert_array_equal(keys[9:], old_keys[3:6])
    np.testing.assert_array_equal(keys[:9], old_keys[:9])
    np.testing.assert_array_equal(states[3], old_states[1])
    cache.copy_state(6, 0)
    cache.clear_state(5)
    np.testing.assert_array_equal(states[0], old_states[6])
    np.testing.assert_array_equal(states[5], 0)
    np.testing.assert_array_equal(states[[1, 2, 4, 6]], old_states[[1, 2, 4, 6]])
    np.testing.assert_array_equal(keys[:9], old_keys[:9])


class FakeCompiled:
    def __init__(self, *inputs: CacheInput) -> None:
        self.inputs = list(map(FakePort, inputs))


class FakePort:
    def __init__(self, cache_input: CacheInput) -> None:
        self._input = cache_input

    def get_any_name(self) -> str:
        return self._input.name

    def get_element_type(self) -> ov.Type:
        return self._input.element_type

    def get_partial_shape(self) -> ov.PartialShape:
        return ov.PartialShape([-1, *self._input.page_shape])


@pytest.mark.parametrize(
    ("state_shape", "num_pages"),
    [((16, 1), 1), ((16, 16), 1), ((16, 16, 1), 1), ((257, 1), 2), ((16, 64), 4)],
)
def test_a_block_has_so_many_pages_that_states_are_no_larger(
    state_shape: tuple[int, ...], num_pages: int
) -> None:
    state = CacheInput("conv_state_table.0", ov.Type.f32, state_shape)
    compiled = FakeCompiled(
        CacheInput("key_cache.0", ov.Type.f16, (2, 8, 16)),
        CacheInput("value_cache.0", ov.Type.f16, (2, 8, 16)),
        state,
    )
    keys, values, table = cache_inputs(compiled)  # type: ignore[arg-type]
    assert (keys.num_pages, values.num_pages, table.num_pages) == (num_pages, num_pages, 1)
    assert table == state
    assert keys.shape(10) == ov.Shape([10 * num_pages, 2, 8, 16])


def test_the_size_of_a_block_counts_bits() -> None:
    assert CacheInput("key_cache.0", ov.Type.u4, (2, 8, 16)).bytes_per_block == 128
    assert CacheInput("key_cache.0", ov.Type.f16, (2, 8, 16)).bytes_per_block == 512
