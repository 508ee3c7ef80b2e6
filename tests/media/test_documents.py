"""Tests of `fastovms/parts/media/documents.py` and of the process that reads PDFs."""

from __future__ import annotations

import io
import threading
import zlib

import pypdf
import pytest
from pypdf import PdfReader, PdfWriter
from pypdf.errors import DependencyError

from fastovms.errors import BackendUnavailable, InvalidField
from fastovms.parts.media.documents import decode_text, is_pdf, read_pdf
from fastovms.parts.media.pdf_reader import PdfProcesses
from tests.media.pdf_files import pdf_file


def encrypted(data: bytes, password: str) -> bytes:
    writer = PdfWriter(clone_from=PdfReader(io.BytesIO(data)))
    writer.encrypt(password, algorithm="RC4-128")
    written = io.BytesIO()
    writer.write(written)
    return written.getvalue()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", ""),
        ("aé漢".encode(), "aé漢"),
        (b"\xef\xbb\xbfa,b\r\n1,2", "a,b\r\n1,2"),
        (b'{"a": 1}', '{"a": 1}'),
    ],
)
def test_text_is_decoded_without_a_byte_order_mark(data, text):
    assert not is_pdf(data)
    assert decode_text(data, "x") == text


@pytest.mark.parametrize("data", [b"\xff\xfe", b"a\0b", b"PK\x03\x04\0", b"\x89PNG\r\n\x1a\n"])
def test_file_that_is_no_utf8_text_is_refused(data):
    with pytest.raises(InvalidField, match="x must be a PDF or a text in UTF-8"):
        decode_text(data, "x")


IN_A_PROCESS = pytest.param(PdfProcesses().read, marks=pytest.mark.slow)


@pytest.mark.parametrize("read", [read_pdf, IN_A_PROCESS])
def test_text_of_pdf_pages_is_joined(read):
    data = pdf_file(["The first page", "", "The third page"])
    assert is_pdf(data)
    assert is_pdf(b"\r\n" + data)
    assert read(data, "x", 3) == "The first page\n\nThe third page"
    assert read(encrypted(data, ""), "x", 3).startswith("The first page")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"%PDF-1.4", "is a corrupt PDF"),
        (b"%PDF-1.4\n" + b"\xff" * 1000, "is a corrupt PDF"),
        (pdf_file(["a", "b", "c", "d"]), "at most 3 pages, not 4"),
        (pdf_file(["", ""]), "has no text"),
        (encrypted(pdf_file(["a"]), "secret"), "is encrypted"),
    ],
)
def test_unusable_pdf_is_refused(data, words):
    with pytest.raises(InvalidField, match=words):
        read_pdf(data, "x", 3)


@pytest.mark.parametrize("name", ["PdfReader", "PdfReader.decrypt"])
def test_pdf_whose_encryption_pypdf_cannot_read_is_refused_as_encrypted(monkeypatch, name):
    def fail(*_: object) -> None:
        raise DependencyError("cryptography>=3.1 is required for AES algorithm")

    monkeypatch.setattr(f"pypdf.{name}", fail)
    with pytest.raises(InvalidField, match=r"x is encrypted$"):
        read_pdf(encrypted(pdf_file(["a"]), ""), "x", 3)


def test_message_about_a_damaged_pdf_has_no_surrogates(monkeypatch):
    def fail(*_: object) -> None:
        raise ValueError("\ud800" * 200)

    monkeypatch.setattr(pypdf, "PdfReader", fail)
    with pytest.raises(InvalidField, match=r"is a corrupt PDF: \?{100}$"):
        read_pdf(b"%PDF-", "x", 3)


@pytest.mark.parametrize("cut", range(20, 600, 29))
def test_damaged_pdf_is_read_or_refused(cut):
    data = pdf_file(["A page"])
    try:
        text = read_pdf(data[:cut] + data[cut + 7 :], "x", 3)
    except InvalidField as error:
        text = error.message
    assert text.encode()


@pytest.mark.slow
def test_pdf_bomb_ends_only_its_process():
    bomb = zlib.compress(b"BT (a) Tj ET\n" * 100_000_000, 1)
    data = pdf_file(["a"], stream=bomb, filters=b"/Filter/FlateDecode")
    with pytest.raises(InvalidField, match="x ") as caught:
        PdfProcesses().read(data, "x", 3)
    assert caught.value.param == "x"


@pytest.mark.slow
def test_pdf_without_memory_for_a_process_is_unavailable():
    def fail():
        raise OSError(12, "no memory")

    with pytest.raises(BackendUnavailable, match="no memory"):
        PdfProcesses(fail).read(b"", "x", 3)


@pytest.mark.slow
def test_close_ends_a_running_reader():
    processes = PdfProcesses()
    bomb = zlib.compress(b"BT (a) Tj ET\n" * 4_000_000, 1)
    data = pdf_file(["a"], stream=bomb, filters=b"/Filter/FlateDecode")
    timer = threading.Timer(1.0, processes.close)
    timer.start()
    with pytest.raises(BackendUnavailable):
        processes.read(data, "x", 3)
    with pytest.raises(BackendUnavailable):
        processes.read(data, "x", 3)
    timer.join()
