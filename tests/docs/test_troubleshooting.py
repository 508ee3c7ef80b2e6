"""Tests that the page Troubleshooting has every message that an operator may read at a start, and
that each remedy belongs to a message."""

from __future__ import annotations

import re

import pytest

from docs import messages_of_code, remedies
from docs.generate import DOCS
from docs.messages_of_code import PACKAGE, Message, messages
from fastovms.parts.openapi.document import _REFUSALS

PAGE = (DOCS / "troubleshooting.md").read_text()


def test_every_message_is_on_the_page_and_every_remedy_belongs_to_one():
    """With "…" for the variable parts."""
    found = messages()
    assert len([message for message in found if message.is_error]) > 100
    assert len([message for message in found if not message.is_error]) > 30
    assert [message for message in found if f"`{message.text}`" not in PAGE] == []
    assert remedies.unused_remedies(found) == []


def test_a_module_without_a_section_is_named():
    with pytest.raises(LookupError, match="unheard"):
        remedies.section_of(Message("unheard.py", "a message", is_error=True))


def test_every_reason_is_in_the_code():
    source = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    joined = re.sub(r'"\s*\n?\s*f?"', "", source)  # texts that span lines
    assert [reason for reason in remedies.REASONS if reason not in joined] == []


def test_every_status_of_a_refusal_is_on_the_page():
    rows = "\n".join(re.findall(r"^\| ([\d, ]+) \|", PAGE, re.MULTILINE))
    assert {str(status) for status in _REFUSALS} - set(re.findall(r"\d+", rows)) == set()


@pytest.mark.parametrize(
    ("code", "texts"),
    [
        ('raise ConfigurationError(f"{a} is not {b:g}")', ["… is not …"]),
        ('raise ConfigurationError("one text" if a else f"another text {b}")',
         ["one text", "another text …"]),
        ('raise ConfigurationError("one %s text" % a)', ["one … text"]),
        ('raise ConfigurationError(f"{a}: " + f"a reason")', ["…: a reason"]),
        ('logger.warning("%s is %d of %s", a, b, c)', ["… is … of …"]),
        ('logger.warning("%s: %s", a, b)', []),
        ('logger.info("a text that is no warning")', []),
    ],
)  # fmt: skip
def test_messages_are_read_from_code(tmp_path, monkeypatch, code: str, texts: list[str]):
    (tmp_path / "module.py").write_text(code)
    monkeypatch.setattr(messages_of_code, "PACKAGE", tmp_path)
    assert [message.text for message in messages()] == texts
