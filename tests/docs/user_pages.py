"""Reads the user pages: those of the parts "Start", "Use", "Run" and "Move here from"."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.paths import ROOT

DOCS: Final = ROOT / "docs"
PARTS: Final = ("Start", "Use", "Run", "Move here from")

_FENCE: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HERE_DOCUMENT: Final = re.compile(r"<<-?\s*'?(\w+)'?")


def user_pages() -> list[Path]:
    """Returns the pages in the order of the navigation."""
    pages, is_inside = [], False
    for line in (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2].splitlines():
        if part := re.match(r"  - ([\w ]+):\s*(?:\S+\.md)?$", line):
            is_inside = part[1] in PARTS
        elif is_inside and (page := re.search(r": (\S+\.md)$", line)):
            pages.append(DOCS / page[1])
    return pages


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page.

    Attributes:
        place: the page and the number of the block, for messages.
        language: the word after the fence.
        line: the number of its first line in the page.
    """

    place: str
    language: str
    text: str
    line: int


def blocks_of(page: Path) -> list[Block]:
    """Returns the fenced blocks of a page."""
    text = page.read_text()
    return [
        Block(f"{page.stem}-{number}", found[1], found[2], text[: found.start()].count("\n") + 1)
        for number, found in enumerate(_FENCE.finditer(text))
    ]


def prose_of(page: Path) -> str:
    """Returns a page without its blocks and comments."""
    return re.sub(r"<!--.*?-->", "", _FENCE.sub("", page.read_text()), flags=re.DOTALL)


def commands_of(block: Block) -> Iterator[str]:
    """Yields the commands of a shell block. Quotes, continued lines and here-documents may span
    lines."""
    command, end = "", ""
    for line in block.text.splitlines():
        command += f"{line}\n"
        if end:
            if line != end:
                continue
            end = ""
        elif found := _HERE_DOCUMENT.search(line):
            end = found[1]
            continue
        if not line.endswith("\\") and _is_closed(command):
            if _words(command):
                yield command
            command = ""
    assert not command, f"{block.place}: an open quote or here-document: {command}"


def _is_closed(command: str) -> bool:
    try:
        _words(command)
    except ValueError:
        return False
    return True


def _words(command: str) -> list[str]:
    return shlex.split(command, comments=True)


def simple_commands(command: str) -> Iterator[list[str]]:
    """Yields the words of each part of a command between `&&`, `|` and `;`, without assignments
    before it and without redirections."""
    joined = command.partition("<<")[0].replace("\\\n", " ")
    lexer = shlex.shlex(joined, posix=True, punctuation_chars="&|;<>()")
    lexer.whitespace_split = True
    words: list[str] = []
    tokens = iter([*lexer, ";"])
    for word in tokens:
        if set(word) <= set("<>"):
            next(tokens)  # the output's or input's file
        elif set(word) <= set("&|;"):
            while words and (re.match(r"\w+=", words[0]) or words[0] == "sudo"):
                del words[0]
            if words:
                yield words
            words = []
        else:
            words.append(word)
