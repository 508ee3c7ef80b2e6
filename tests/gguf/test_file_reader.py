"""What is read of GGUF files, and that no broken one gets further."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from hypothesis import given, settings
from hypothesis import strategies as st

from fastovms.errors import ConfigurationError
from fastovms.gguf import file_reader
from fastovms.gguf.file_reader import read_gguf
from tests.gguf.raw_head import entry, head, string, tensor
from tests.gguf.tiny_models import TinyModel, write_model


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


def test_tensors_are_found(tmp_path: Path) -> None:
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
        (b"", "it ends too early"),
        (b"<?xml version", "it does not begin with GGUF"),
        (head([], version=9), "version 9 is not known"),
        (head([entry("a", "text")])[:-1], "it ends too early"),
        (head([struct.pack("<Q", 1) + b"a" + struct.pack("<I", 99)]), "type 99 is not known"),
        (head([struct.pack("<Q", 2**63)]), "it ends too early"),
        (head([entry("a", 1), entry("a", 1)]), "it has 'a' twice"),
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
    monkeypatch.setattr(file_reader, "_MAX_HEAD_BYTES", 2**16)
    with (tmp_path / "m.gguf").open("wb") as file:
        file.write(head([start]))
        file.truncate(2**32)  # which takes no room on a disk
    with pytest.raises(ConfigurationError, match="says of itself is longer than 65536 bytes"):
        read_gguf(tmp_path / "m.gguf")


@pytest.mark.parametrize("kind", [Type.F16, Type.Q8_0])
def test_a_file_that_was_cut_is_refused(tmp_path: Path, kind: Type) -> None:
    write_model(tmp_path / "m.gguf", TinyModel(types=(kind,)))
    whole = (tmp_path / "m.gguf").read_bytes()
    assert read_gguf(tmp_path / "m.gguf").tensors
    for size in (len(whole) - 100, len(whole) // 2):
        (tmp_path / "m.gguf").write_bytes(whole[:size])
        with pytest.raises(ConfigurationError, match=rf"it has {size} bytes, but \S+ ends at"):
            read_gguf(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([b""], "it ends too early"),
        ([string("a") + struct.pack("<I", 5)], "a has 5 dimensions"),
        ([tensor("a", (2**63, 2**63), 0, 0)], "but a ends at"),
        ([tensor("a", (99,), 0, 2**63)], "but a ends at"),
        ([tensor("a", (), 0, 0)], r"a is of shape \[\], without numbers"),
        ([tensor("a", (0, 4), 0, 0)], r"a is of shape \[0, 4\], without numbers"),
        ([tensor("a", (33,), 2, 0)], "a has rows that are no multiple of 32"),
        ([tensor("a", (2,), 0, 0)] * 2 + [bytes(99)], "it has two tensors a"),
        ([tensor("a", (256,), 19, 0)], "a is of type IQ1_S, which is not read; read are BF16, F16"),
        ([tensor("a", (256,), 999, 0)], "a is of type number 999, which is not read"),
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


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_no_head_crashes_the_reader(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "random.gguf"
    path.write_bytes(head([b"x"], num_tensors=1)[:24] + data)
    with suppress(ConfigurationError):  # and nothing else
        read_gguf(path)
