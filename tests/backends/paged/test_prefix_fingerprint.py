from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fastovms.backends.paged import prefix_fingerprint
from fastovms.backends.paged.prefix_fingerprint import PrefixDirectory, prefix_files
from fastovms.params import ModelInfo
from fastovms.prefix_cache.block_directory import BlockDirectory

INFO = ModelInfo(
    name="org/model", created=0, max_model_len=900, vocab_size=9, eos_token_ids=frozenset()
)


def model(**traits: object) -> Any:
    given = {"is_on_gpu": False, "device": "CPU", "cache_traits": ["f32", 32]}
    return SimpleNamespace(**{**given, **traits})


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    for name in ("openvino_model.xml", "openvino_model.bin"):
        (tmp_path / name).write_bytes(b"weights")
        os.utime(tmp_path / name, (1, 1))
    return tmp_path


def test_it_is_another_where_another_thing_is_computed(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = BlockDirectory(model_dir / "cache", 1000)
    directory = PrefixDirectory(blocks)

    def fingerprint(**traits: object) -> bytes:
        found = prefix_files(directory, model(**traits), model_dir, INFO)
        assert found is not None
        assert found.folder == f"{found.fingerprint.hex()[:16]}-org_model"
        return found.fingerprint

    first = fingerprint()
    assert fingerprint() == first
    found = [first, fingerprint(cache_traits=["u8", 32])]
    (model_dir / "openvino_model.bin").write_bytes(b"WEIGHTS")
    os.utime(model_dir / "openvino_model.bin", (1, 1))  # as archives set it
    found.append(fingerprint())
    monkeypatch.setattr(prefix_fingerprint, "_cpu_flags", lambda: "flags: other")
    found.append(fingerprint())
    assert len(set(found)) == len(found)
    assert prefix_files(directory, model(is_on_gpu=True), model_dir, INFO) is None
    blocks.close()
