"""Forms are read however they are cut into pieces, and the file of one goes to its path alone."""

from __future__ import annotations

import pytest

from fastovms.api.files.form_reader import FormReader
from fastovms.errors import RequestError
from tests.api.files.forms import BOUNDARY, CONTENT_TYPE, form, part

END = f"--{BOUNDARY}--\r\n".encode()


def read(path, body: bytes, size: int = 7, max_size: int = 1000) -> FormReader:
    reader = FormReader(CONTENT_TYPE, path / "content", max_size)
    try:
        reader.feed([body[start : start + size] for start in range(0, len(body), size)])
        reader.finish()
    except BaseException:
        reader.discard()
        raise
    return reader


@pytest.mark.parametrize("size", [1, 2, 7, 100, 5000])
def test_any_pieces(tmp_path, size: int) -> None:
    content = b"\r\n--xy\r\n--" + bytes(range(256)) + b"\r\n"
    reader = read(tmp_path, form({"purpose": "batch"}, content, "../../é.jsonl"), size)
    assert reader.fields == {"purpose": "batch"}
    assert (reader.file_name, reader.size) == ("../../é.jsonl", len(content))
    assert [path.name for path in tmp_path.iterdir()] == ["content"]
    assert (tmp_path / "content").read_bytes() == content
    assert (tmp_path / "content").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (form(file=None), "file is required"),
        (form()[:-10], "the form ends before its last boundary"),
        (b"", "the form ends before its last boundary"),
        (b"no form", "cannot be read"),
        (form(file=b"x" * 1001), "the file is larger than 1000 bytes"),
        (form({"a": "x" * 1025}), "a must have at most 1024 bytes"),
        (form({f"a{i}": "" for i in range(17)}), "at most 16 fields"),
        (part('name="a"', b"1") * 2 + END, "each of them once"),
        (part('filename="a"', b"1") + END, "must not be a file"),
        (part('name="b"; filename="a"', b"1") + END, "b must not be a file"),
        (part('name="file"; filename="a"', b"1") * 2 + END, "one file, not several"),
        (form(name="x" * 257), "at most 256 characters"),
        (part('x="a"', b"1") + END, "must have a name"),
        (part('name="a"', b"\xff") + END, "a must be UTF-8"),
    ],
)
def test_what_is_refused(tmp_path, body: bytes, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        read(tmp_path, body)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content_type", ["multipart/form-data", f"a/b; boundary={'x' * 300}"])
def test_boundaries(tmp_path, content_type: str) -> None:
    with pytest.raises(RequestError, match=r"[bB]oundary"):
        FormReader(content_type, tmp_path / "content", 10)
