from __future__ import annotations

import base64
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastovms.errors import InvalidField
from fastovms.media import data_url
from fastovms.media.data_url import decode_data_url

DATA = bytes(range(256))
TEXT = base64.b64encode(DATA).decode()


@pytest.mark.parametrize(
    "head",
    [
        "data:image/png;base64,",
        "DATA:IMAGE/PNG;BASE64,",
        "data:image/png;charset=utf-8;base64,",
        "data:;base64,",
        "data:image/*;base64,",
        "data:application/octet-stream;base64,",
    ],
)
def test_heads(head):
    assert decode_data_url(head + TEXT + "\n", "url", max_bytes=256) == DATA


@pytest.mark.parametrize(
    "text",
    [
        base64.encodebytes(DATA).decode(),
        TEXT.replace("/", "/\r\n"),
        f" {TEXT[:10]}\t{TEXT[10:]} ",
        TEXT.replace("+", "%2B").replace("/", "%2f").replace("=", "%3D"),
    ],
)
def test_lines_and_escapes(text):
    assert text != TEXT
    assert decode_data_url(f"data:image/png;base64,{text}", "url", max_bytes=256) == DATA


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("data:", "malformed data URL"),
        ("data:image/png;base64", "malformed data URL"),
        ("data:" + "x" * 400 + ",", "malformed data URL"),
        ("data:image/png,abc", "in base64"),
        ("data:text/html;base64,YQ==", "must be an image, not text/html"),
        ("data:image/png;base64,Y%51==", "malformed base64"),
        ("data:image/png;base64,YQ=", "malformed base64"),
        ("data:image/png;base64,Y", "malformed base64"),
        ("data:image/png;base64,YQ==YQ==", "malformed base64"),
        ("data:image/png;base64,Y Q=", "malformed base64"),
        ("data:image/png;base64,Y\u00e4Q=", "malformed base64"),
        ("data:image/png;base64,_-==", "malformed base64"),
        ("data:image/png;base64," + "A" * 348, "at most 256 bytes"),
        ("data:image/png;base64," + "A" * 10_000, "at most 256 bytes"),
        ("data:image/png;base64," + "=" * 10_000, "at most 256 bytes"),
    ],
)
def test_faults(url, message):
    with pytest.raises(InvalidField, match=message) as error:
        decode_data_url(url, "messages[0].content[0].image_url.url", max_bytes=256)
    assert error.value.param == "messages[0].content[0].image_url.url"


@given(st.binary(max_size=100))
def test_pieces_are_one_file(data):
    url = "data:image/png;base64," + base64.b64encode(data).decode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_url, "_PIECE", 8)
        assert decode_data_url(url, "url", max_bytes=100) == data


@given(st.text(max_size=60))
def test_any_text_is_data_or_an_invalid_field(text):
    with suppress(InvalidField):
        decode_data_url("data:image/png;base64," + text, "url", max_bytes=30)
