"""Tests of `fastovms/gguf/reader.py`."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from hypothesis import given
from hypothesis import strategies as st

from fastovms.errors import ConfigurationError
from fastovms.gguf import reader
from fastovms.gguf.reader import (
    TENSOR_TYPES,
    TYPE_NAMES,
    Hyperparameters,
    TensorType,
    read_gguf,
    read_hyperparameters,
)
from tests.gguf.raw_head import entry, head, string, tensor
from tests.gguf.tiny_models import FIRST_SCALE, WITH_MINIMUM, TinyModel, random_rows, write_model

# Groups of integers and scales equal the numbers that llama.cpp's own package reads.


QUANTIZED = {number: kind for number, kind in TENSOR_TYPES.items() if kind.bits}


def values(kind: TensorType, blocks: np.ndarray) -> np.ndarray:
    assert kind.unpack is not None
    groups = kind.unpack(blocks)
    offsets = 0 if groups.zero_points is None else groups.zero_points[..., None]
    numbers = (groups.integers.astype(np.float64) - offsets) * groups.scales[..., None]
    return numbers.reshape(len(blocks), -1)


@pytest.mark.parametrize("number", TENSOR_TYPES)
def test_tensor_types_have_the_sizes_of_the_gguf_package(number: int) -> None:
    kind = TENSOR_TYPES[number]
    assert Type(number).name == kind.name
    assert gguf.GGML_QUANT_SIZES[Type(number)] == (kind.block_size, kind.block_bytes)


def test_every_tensor_type_has_a_name() -> None:
    for kind in Type:
        assert TYPE_NAMES.get(kind) == kind.name or kind in TENSOR_TYPES or kind > max(TYPE_NAMES)


@pytest.mark.parametrize("number", QUANTIZED)
def test_quantized_rows_are_dequantized_as_by_the_gguf_package(number: int) -> None:
    kind = QUANTIZED[number]
    rng = np.random.default_rng(number)
    rows = random_rows(rng, 64, 2 * kind.block_size, Type(number), 0.1)
    expected = gguf.dequantize(rows, Type(number)).reshape(-1, kind.block_size)
    found = values(kind, rows.reshape(-1, kind.block_bytes))
    exact = Type(number) not in WITH_MINIMUM
    np.testing.assert_allclose(found, expected, rtol=0, atol=0 if exact else 1e-7)


@pytest.mark.parametrize("number", QUANTIZED)
def test_integers_fit_their_bits(number: int) -> None:
    kind = QUANTIZED[number]
    blocks = np.random.default_rng(0).integers(0, 256, (500, kind.block_bytes)).astype(np.uint8)
    start = FIRST_SCALE[Type(number)]
    blocks[:, start : start + 4] = np.array([1, 0.5], np.float16).view(np.uint8)[
        : blocks.shape[1] - start
    ]
    assert kind.unpack is not None
    integers = kind.unpack(blocks).integers
    signed = integers.dtype == np.int8
    assert integers.min() >= (-(2 ** (kind.bits - 1)) if signed else 0)
    assert integers.max() < 2 ** (kind.bits - signed)


@pytest.mark.parametrize("kind", WITH_MINIMUM, ids=lambda kind: kind.name)
def test_a_scale_of_zero_leaves_the_minimum(kind: Type) -> None:
    tensor_type = TENSOR_TYPES[kind]
    blocks = np.full((1, tensor_type.block_bytes), 0x11, np.uint8)
    start = FIRST_SCALE[kind]
    blocks[:, start : start + 4] = np.array([0, 0.5], np.float16).view(np.uint8)
    expected = gguf.dequantize(blocks, kind)
    assert expected.any()
    np.testing.assert_allclose(values(tensor_type, blocks), expected, rtol=1e-6)


# The content of GGUF files, and the refusal of damaged ones.


def test_metadata_is_read_by_type(tmp_path: Path) -> None:
    values = {"a": 7, "b": "text", "c": ["x", "y"], "d": [1, -2], "e": 0.5}
    nested = struct.pack("<IIQ", 9, 9, 1) + struct.pack("<IQ2B", 0, 2, 3, 4)
    entries = [entry(key, value) for key, value in values.items()]
    name = struct.pack("<Q", 1)
    entries += [name + b"f" + struct.pack("<I?", 7, True), name + b"g" + nested]
    (tmp_path / "m.gguf").write_bytes(head(entries))
    file = read_gguf(tmp_path / "m.gguf")
    assert file.metadata == {**values, "f": True, "g": [[3, 4]]}
    assert file.tensors == {}


def test_tensors_are_read_with_shape_type_and_rows(tmp_path: Path) -> None:
    write_model(tmp_path / "m.gguf", TinyModel(types=(Type.Q4_0, Type.F16)))
    file = read_gguf(tmp_path / "m.gguf")
    for expected in gguf.GGUFReader(tmp_path / "m.gguf").tensors:
        info = file.tensors[expected.name]
        assert info.shape == tuple(int(n) for n in reversed(expected.shape))
        assert info.type.name == expected.tensor_type.name
        rows = file.read_rows(expected.name)
        assert np.array_equal(rows.reshape(-1), expected.data.reshape(-1).view(np.uint8))
        assert len(rows) == (info.shape[0] if len(info.shape) == 2 else 1)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file ends too early"),
        (b"<?xml version", "the file does not begin with GGUF"),
        (head([], version=9), "GGUF version 9 is not supported"),
        (head([entry("a", "text")])[:-1], "the file ends too early"),
        (head([struct.pack("<Q", 1) + b"a" + struct.pack("<I", 99)]), "the unknown type 99"),
        (head([struct.pack("<Q", 2**63)]), "the file ends too early"),
        (head([entry("a", 1), entry("a", 1)]), "the key 'a' occurs twice"),
        (head([entry("general.alignment", 0)]), "general.alignment must be a power of two, not 0"),
        (head([entry("general.alignment", "x")]), "general.alignment must be a power of two"),
        (head([struct.pack("<Q", 1) + b"a" + struct.pack("<IIQ", 9, 6, 2**62)]), "too early"),
        (head([struct.pack("<Q", 1) + b"a" + struct.pack("<IIQ", 9, 9, 1) * 9]), "not known|early"),
    ],
)
def test_a_broken_head_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "m.gguf").write_bytes(data)
    with pytest.raises(ConfigurationError, match=message):
        read_gguf(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    "start",
    [
        string("a") + struct.pack("<IQ", 8, 2**32 - 60),  # a text
        string("a") + struct.pack("<IIQ", 9, 4, 2**28),  # numbers
        string("a") + struct.pack("<IIQ", 9, 8, 2**62),  # texts
    ],
)
def test_a_head_of_gigabytes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: bytes
) -> None:
    monkeypatch.setattr(reader, "_MAX_HEAD_BYTES", 2**16)
    with (tmp_path / "m.gguf").open("wb") as file:
        file.write(head([start]))
        file.truncate(2**32)  # which occupies no disk space
    with pytest.raises(ConfigurationError, match="metadata has more than 65536 bytes"):
        read_gguf(tmp_path / "m.gguf")


@pytest.mark.parametrize("kind", [Type.F16, Type.Q8_0])
def test_a_file_that_was_cut_is_refused(tmp_path: Path, kind: Type) -> None:
    write_model(tmp_path / "m.gguf", TinyModel(types=(kind,)))
    whole = (tmp_path / "m.gguf").read_bytes()
    assert read_gguf(tmp_path / "m.gguf").tensors
    for size in (len(whole) - 100, len(whole) // 2):
        (tmp_path / "m.gguf").write_bytes(whole[:size])
        with pytest.raises(
            ConfigurationError, match=rf"the file has {size} bytes, but the tensor \S+ ends at"
        ):
            read_gguf(tmp_path / "m.gguf")


def test_any_part_of_a_split_file_loads_the_whole_model(tmp_path: Path) -> None:
    write_model(tmp_path / "whole.gguf", TinyModel())
    write_model(tmp_path / "m.gguf", TinyModel(), tensors_per_part=10)
    whole, parts = read_gguf(tmp_path / "whole.gguf"), sorted(tmp_path.glob("m-*-of-*.gguf"))
    assert len(parts) == 3
    for part in parts:
        file = read_gguf(part)
        assert whole.metadata.items() <= file.metadata.items()
        assert file.tensors.keys() == whole.tensors.keys()
        for name in whole.tensors:
            assert np.array_equal(file.read_rows(name), whole.read_rows(name))


def part(count: object, number: object, *names: str, total: int = 2) -> bytes:
    """Returns a part with this metadata and tensors of one number."""
    keys = {"split.count": count, "split.no": number, "split.tensors.count": total}
    entries = [entry(key, value) for key, value in keys.items()]
    tensors = b"".join(tensor(name, (1,), 0, 32 * i) for i, name in enumerate(names))
    return head(entries, len(names)) + tensors + bytes(96)


FIRST, SECOND = part(2, 0, "a"), part(2, 1, "b")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"m-00002-of-00002.gguf": SECOND}, "parts of a model, of which .* m-00001-of-00002.gguf$"),
        ({"m-00001-of-00009.gguf": FIRST}, "does not have m-00002-.*, m-00004-of-00009.gguf and 5"),
        ({"m-00001-of-00002.gguf": FIRST, "m-00002-of-00002.gguf": b"GGUF"},
         "m-00002-of-00002.gguf is not a valid GGUF file: the file ends too early"),
        ({"m-00001-of-00002.gguf": SECOND, "m-00002-of-00002.gguf": FIRST},
         "m-00001-.* split.no is 1, but its name says that it is part 1 of 2"),
        ({"m-00001-of-00002.gguf": part(3, 0, "a"), "m-00002-of-00002.gguf": SECOND},
         "m-00001-.* split.count is 3 and split.no is 0, but its name says that it is part 1 of 2"),
        ({"m-00001-of-00002.gguf": FIRST, "m-00002-of-00002.gguf": part(2, "1", "b")},
         "m-00002-.* split.count is 2 and split.no is 1, but its name says"),
        ({"m-00001-of-00002.gguf": FIRST, "m-00002-of-00002.gguf": head([])},
         "m-00002-.* split.count is 1 and split.no is 0, but its name says"),
        ({"m-00001-of-00002.gguf": part(2, 0, "a", total=3), "m-00002-of-00002.gguf": SECOND},
         "m-00001-.* split.tensors.count is 3, but all parts have 2 tensors"),
        ({"m-00001-of-00002.gguf": FIRST, "m-00002-of-00002.gguf": part(2, 1, "a")},
         "m-00002-.* m-00001-of-00002.gguf has the tensor a, too"),
        ({"m.gguf": FIRST}, "split.count is 2 and split.no is 0, but its name does not end as"),
        ({"m-00003-of-00002.gguf": FIRST}, "split.count is 2 and .* its name does not end as"),
    ],
)  # fmt: skip
def test_parts_that_do_not_fit_are_refused(
    tmp_path: Path, files: dict[str, bytes], message: str
) -> None:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigurationError, match=message):
        read_gguf(tmp_path / min(files))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([b""], "the file ends too early"),
        ([string("a") + struct.pack("<I", 5)], "the tensor a has 5 dimensions, more than 4"),
        ([tensor("a", (2**63, 2**63), 0, 0)], "but the tensor a ends at"),
        ([tensor("a", (99,), 0, 2**63)], "but the tensor a ends at"),
        ([tensor("a", (), 0, 0)], r"a has the shape \[\], which has no elements"),
        ([tensor("a", (0, 4), 0, 0)], r"a has the shape \[0, 4\], which has no elements"),
        ([tensor("a", (33,), 2, 0)], "the tensor a has rows of 33 values, not a multiple of 32"),
        ([tensor("a", (2,), 0, 0)] * 2 + [bytes(99)], "two tensors have the name a"),
        (
            [tensor("a", (256,), 19, 0)],
            "the tensor a has the type IQ1_S, which is not supported; supported are BF16, F16",
        ),
        (
            [tensor("a", (256,), 999, 0)],
            "the tensor a has the type number 999, which is not supported",
        ),
    ],
)
def test_broken_tensors_are_refused(tmp_path: Path, tensors: list[bytes], message: str) -> None:
    data = head([], num_tensors=min(2, len(tensors))) + b"".join(tensors)
    (tmp_path / "m.gguf").write_bytes(data)
    with pytest.raises(ConfigurationError, match=message):
        read_gguf(tmp_path / "m.gguf")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read .*m\.gguf: No such file"):
        read_gguf(tmp_path / "m.gguf")


@given(st.binary(max_size=200))
def test_no_head_crashes_the_reader(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "random.gguf"
    path.write_bytes(head([b"x"], num_tensors=1)[:24] + data)
    with suppress(ConfigurationError):  # and nothing else
        read_gguf(path)


# Supported architectures, and the errors for others.


# A decoder's settings, and those that are refused.


SIZES: dict[str, Any] = {
    "block_count": 4,
    "context_length": 512,
    "embedding_length": 64,
    "feed_forward_length": 128,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
}


def read(architecture: str = "llama", /, **settings: Any) -> Hyperparameters:
    """Names have underscores in place of dots, and two underscores in place of one."""
    named = {name.replace("__", "."): value for name, value in settings.items()}
    of_architecture = {
        f"{architecture}.{name}": value for name, value in {**SIZES, **named}.items()
    }
    metadata = {"general.architecture": architecture, **of_architecture}
    return read_hyperparameters({name: each for name, each in metadata.items() if each is not None})


def test_hyperparameters_have_defaults() -> None:
    parameters = read(attention__head_count_kv=None)
    assert (parameters.head_size, parameters.num_kv_heads) == (16, 4)
    assert parameters.score_scale == 0.25
    assert parameters.rope.num_dimensions == 16
    assert (parameters.rope.base, parameters.rope.factor) == (10_000, 1)
    assert parameters.rope.original_context == 512
    assert not any(parameters.windowed_layers)


@pytest.mark.parametrize(
    ("architecture", "window", "pattern", "num_layers", "windowed"),
    [
        ("llama", None, None, 4, "0000"),
        ("llama", 0, None, 4, "0000"),
        ("llama", 8, None, 4, "1111"),
        ("llama", 512, None, 4, "0000"),
        ("phi3", 8, None, 4, "1111"),
        ("gemma3", 8, None, 4, "1111"),
        ("gemma3", 8, None, 8, "11111011"),
        ("gemma3", 8, 3, 4, "1101"),
        ("gemma3", 8, 1, 4, "0000"),
        ("gemma3", 8, [True, False, False, True], 4, "1001"),
    ],
)
def test_sliding_window_applies_to_layers_of_the_architecture(
    architecture: str, window: int | None, pattern: object, num_layers: int, windowed: str
) -> None:
    settings = {"attention__sliding_window": window, "attention__sliding_window_pattern": pattern}
    layers = read(architecture, block_count=num_layers, **settings).windowed_layers
    assert "".join(str(int(has_window)) for has_window in layers) == windowed


def test_the_largest_gemma_3_scales_by_its_hidden_size() -> None:
    assert (
        read("gemma3", attention__key_length=32, attention__value_length=32).score_scale == 32**-0.5
    )
    large = read("gemma3", attention__key_length=32, attention__value_length=32, block_count=62)
    assert large.score_scale == 0.25


@pytest.mark.parametrize(
    ("architecture", "settings", "message"),
    [
        ("mamba", {}, "architecture mamba is not supported; supported are llama, qwen2"),
        ("gemma2", {}, "architecture gemma2 is not supported: its attention has a soft cap"),
        ("llama", {"expert_count": 8}, r"the setting llama.expert_count \(8\) is not supported"),
        ("lfm2", {"attention__head_count_kv": [0, 0, 0, 0]}, "for each of 4 layers, not all"),
        ("lfm2", {"attention__head_count_kv": [0, 2]}, r"for each of 4 layers.* not \[0, 2\]"),
        ("lfm2", {"attention__head_count_kv": [0, 2, 1, 2]}, "head_count_kv must be a count"),
        ("lfm2", {"attention__head_count_kv": [0, 2, 0, 2]}, "lfm2.shortconv.l_cache is missing"),
        ("llama", {"attention__head_count_kv": [0, 2, 0, 2]}, "head_count_kv must be a count"),
        ("qwen3moe", {}, "qwen3moe.expert_count is missing"),
        ("qwen3moe", {"expert_count": 513}, "expert_count must be a count of 1 to 512, not 513"),
        ("qwen3moe", {"expert_count": 8, "expert_used_count": 9},
         "expert_used_count must be a count of 1 to 8, not 9"),
        ("qwen3moe", {"expert_count": 8, "expert_used_count": 2, "expert_gating_func": 2},
         r"the setting qwen3moe.expert_gating_func \(2\) is not supported"),
        ("llama", {"logit_scale": 0.5}, r"the setting llama.logit_scale \(0.5\) is not supported"),
        ("qwen3", {"pooling_type": 3}, r"the setting qwen3.pooling_type \(3\) is not supported"),
        ("llama", {"attention__causal": False}, "llama.attention.causal"),
        ("qwen2", {"attention__sliding_window": 8}, "qwen2 with a sliding window is not supported"),
        ("llama", {"context_length": None}, "llama.context_length is missing"),
        ("llama", {"block_count": "4"}, "llama.block_count must be a count of 1 to 512, not '4'"),
        ("llama", {"attention__head_count_kv": [2, 2, 1, 2]}, r"head_count_kv must be a count"),
        ("llama", {"attention__head_count_kv": 3}, "4 query heads cannot share 3 KV heads"),
        (
            "llama",
            {"attention__value_length": 32},
            "attention.value_length is 32, but must be attention.key_length, 16",
        ),
        ("llama", {"rope__dimension_count": 8}, "only 8 of 16 dimensions are rotated"),
        ("phi3", {"rope__dimension_count": 7}, "rope.dimension_count 7 is not possible"),
        (
            "llama",
            {"rope__scaling__type": "dynamic"},
            "rope.scaling.type must be none, linear, yarn or longrope, not dynamic",
        ),
        ("llama", {"rope__scaling__factor": float("nan")}, "rope.scaling.factor must be a number"),
        ("llama", {"rope__freq_base": float("inf")}, "rope.freq_base must be a number, not inf"),
        ("llama", {"rope__freq_base": 0.0}, "llama.rope.freq_base must be above 0"),
        ("llama", {"block_count": 2**32 - 1}, "block_count must be a count of 1 to 512, not 4294"),
        ("llama", {"context_length": 2**62}, "context_length must be a count of 1 to 2147483647"),
        ("llama", {"attention__head_count": 2**30, "attention__key_length": 16,
                   "attention__value_length": 16}, "heads of 16 dimensions have more than 1048576"),
        ("gemma3", {"attention__sliding_window": 8, "attention__sliding_window_pattern": [True]},
         "attention.sliding_window_pattern must have a boolean for each layer"),
        ("gemma3", {"attention__sliding_window": 8, "attention__sliding_window_pattern": "x"},
         "attention.sliding_window_pattern must be a number of layers, not x"),
    ],
)  # fmt: skip
def test_unsupported_metadata_is_refused_by_name(
    architecture: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read(architecture, **settings)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "general.architecture is missing"),
        ({"general.architecture": 5}, "general.architecture is missing"),
        ({"general.architecture": "llama", "general.type": "adapter"}, "type must be model"),
    ],
)
def test_file_that_is_no_whole_model_is_refused(metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read_hyperparameters(metadata)


def test_equal_values_of_all_layers_are_one() -> None:
    assert read(attention__head_count_kv=[2, 2, 2, 2]).num_kv_heads == 2
