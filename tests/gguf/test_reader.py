"""Tests of `fastovms/gguf/reader.py`."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from hypothesis import given
from hypothesis import strategies as st

from bench.random_models.gguf_decoder import GgufModel, write_model
from fastovms.errors import ConfigurationError
from fastovms.gguf import reader
from fastovms.gguf.reader import read_gguf
from tests.gguf.raw_head import entry, head, string, tensor

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
    write_model(tmp_path / "m.gguf", GgufModel(types=(Type.Q4_0, Type.F16)))
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
    write_model(tmp_path / "m.gguf", GgufModel(types=(kind,)))
    whole = (tmp_path / "m.gguf").read_bytes()
    assert read_gguf(tmp_path / "m.gguf").tensors
    for size in (len(whole) - 100, len(whole) // 2):
        (tmp_path / "m.gguf").write_bytes(whole[:size])
        with pytest.raises(
            ConfigurationError, match=rf"the file has {size} bytes, but the tensor \S+ ends at"
        ):
            read_gguf(tmp_path / "m.gguf")


def test_any_part_of_a_split_file_loads_the_whole_model(tmp_path: Path) -> None:
    write_model(tmp_path / "whole.gguf", GgufModel())
    write_model(tmp_path / "m.gguf", GgufModel(), tensors_per_part=10)
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
