"""Reads the text of documents: plain text as it is, and PDF with pypdf."""

from __future__ import annotations

import importlib.util
import io
import logging
from typing import Final

from fastovms.errors import InvalidField

MAX_TEXT: Final = 4 * 1024 * 1024
"""The maximum number of characters of a PDF's text; no context holds more."""

_SIGNATURE: Final = b"%PDF-"
_MAX_BEFORE: Final = 1024
"""The number of bytes within which a PDF's signature must begin, as in other readers."""


def is_pdf(data: bytes) -> bool:
    """Returns whether a file is a PDF: up to 1,024 other bytes may precede its signature."""
    return data.find(_SIGNATURE, 0, _MAX_BEFORE + len(_SIGNATURE)) >= 0


def can_read_pdf() -> bool:
    """Returns whether pypdf is installed."""
    return importlib.util.find_spec("pypdf") is not None


def decode_text(data: bytes, name: str) -> str:
    """Returns the text of a document that is not a PDF. Raises InvalidField if the document is not
    UTF-8 or contains U+0000. `name` is the request field with the
    document."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise InvalidField(f"{name} must be a PDF or a text in UTF-8", param=name)
    return text


def read_pdf(data: bytes, name: str, max_pages: int) -> str:
    """Returns the text of a PDF, with an empty line between pages. Takes seconds, and unlimited
    time for a malicious document, so call it in a process with limits. Raises InvalidField if the
    document is corrupt, encrypted or too long, or has no text."""
    # Imported here because only the process that reads documents needs it.
    from pypdf import PdfReader
    from pypdf.errors import DependencyError

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # hide warnings about clients' documents
    reader: PdfReader | None = None
    try:
        reader = PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise InvalidField(f"{name} is encrypted", param=name)
        if len(reader.pages) > max_pages:
            raise InvalidField(
                f"{name} must have at most {max_pages} pages, not {len(reader.pages)}", param=name
            )
        texts: list[str] = []
        length = 0
        for page in reader.pages:
            text = page.extract_text().strip()
            length += len(text)
            if length > MAX_TEXT:
                raise InvalidField(f"{name} has more than {MAX_TEXT} characters", param=name)
            texts.append(text)
    except (InvalidField, MemoryError):
        raise
    except DependencyError as error:
        is_encrypted = reader is None or reader.is_encrypted
        reason = "is encrypted" if is_encrypted else "has a form of data that is not supported"
        raise InvalidField(f"{name} {reason}", param=name) from error
    except Exception as error:  # pypdf may raise any exception for a corrupt document
        reason = _encodable(str(error)[:100])
        raise InvalidField(f"{name} is a corrupt PDF: {reason}", param=name) from error
    if not length:
        raise InvalidField(f"{name} has no text: images of pages are not read", param=name)
    return _encodable("\n\n".join(filter(None, texts))).replace("\0", "")


def _encodable(text: str) -> str:
    """Returns the text without surrogates, which corrupt documents may contain and UTF-8 cannot
    encode."""
    return text.encode(errors="replace").decode()
