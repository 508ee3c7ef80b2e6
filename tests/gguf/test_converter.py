"""The converter as a program: what it leaves in a directory, and how it refuses a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastovms.errors import ConfigurationError
from fastovms.gguf.converter import REFUSED, main, read_contents
from tests.gguf.raw_head import entry, head
from tests.gguf.tiny_models import TinyModel, write_model


def test_the_head_alone_tells_what_is_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(head([entry("general.architecture", "llama")]))
    with pytest.raises(ConfigurationError, match=r"m\.gguf cannot be served: llama.block_count"):
        read_contents(path)


def test_a_refusal_is_one_line_and_a_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(tmp_path / "m.gguf", TinyModel("qwen2", settings={"block_count": 4}))
    assert main(str(tmp_path / "m.gguf"), str(tmp_path)) == REFUSED
    assert capsys.readouterr().err == (
        f"{tmp_path}/m.gguf cannot be served: the tensor blk.3.attn_norm.weight is missing\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]
