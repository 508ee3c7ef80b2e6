"""Finds words that the glossary of CONTRIBUTING.md replaces. `python -m docs.glossary` prints them.

The last two columns of its table hold phrases in backticks: those that are not written, and longer
phrases in which they are correct. Comments and strings of three words or more are read in the
package, paragraphs in pages. Code between backticks or
braces is not read.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
_HEAD: Final = "| word | meaning | not | but |"
_CODE: Final = re.compile(r"`[^`\n]*`|<[^>\n]*>|\{[^}\n]*\}")
_GENERATED: Final = frozenset(("files.md",))


class Term(NamedTuple):
    """A row of the glossary.

    Attributes:
        word: the word to use.
        wrong: matches the phrases not to use.
        right: matches longer phrases in which they are correct; None if the row has none.
    """

    word: str
    wrong: re.Pattern[str]
    right: re.Pattern[str] | None


class Misuse(NamedTuple):
    """A phrase that the glossary replaces by `word`."""

    path: Path
    line: int
    phrase: str
    word: str

    def __str__(self) -> str:
        path = self.path.relative_to(ROOT)
        return f"{path}:{self.line}: write {self.word!r}, not {self.phrase!r}"


def read_terms(text: str) -> list[Term]:
    """Returns the rows that name phrases not to use. `text` is that of CONTRIBUTING.md. Raises
    ValueError if the text has no glossary."""
    terms = []
    lines = iter(text.splitlines())
    if _HEAD not in lines:
        raise ValueError(f"no table begins with {_HEAD}")
    for line in lines:
        if not line.startswith("|"):
            break
        word, _, wrong, right = (cell.strip() for cell in line.strip("|").split("|"))
        if wrong := _phrases(wrong):
            terms.append(Term(word, wrong, _phrases(right)))
    return terms


def _phrases(cell: str) -> re.Pattern[str] | None:
    phrases = re.findall("`([^`]+)`", cell)
    words = "|".join(rf"(?<!\w){re.escape(p)}" if p[0].isalnum() else re.escape(p) for p in phrases)
    return re.compile(rf"(?:{words})(?!\w)", re.IGNORECASE) if phrases else None


def find_misuses(terms: list[Term]) -> Iterator[Misuse]:
    """Yields the phrases not to use in the package and the pages."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for path in (*sorted((ROOT / "fastovms").rglob("*.py")), *pages):
        text = path.read_text(encoding="utf-8")
        # Reading tokens takes long, and few files have such a phrase at all.
        found = [term for term in terms if term.wrong.search(text)]
        if not found or path.name in _GENERATED:
            continue
        for line, prose in _python_prose(text) if path.suffix == ".py" else _page_prose(text):
            for term in found:
                rest = prose if term.right is None else term.right.sub("", prose)
                for match in term.wrong.finditer(rest):
                    yield Misuse(path, line, match[0], term.word)


def _python_prose(text: str) -> Iterator[tuple[int, str]]:
    """Yields comments and strings with the numbers of their first lines."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING) and len(token.string.split()) > 2:
            yield token.start[0], " ".join(_CODE.sub("", token.string).split())


def _page_prose(text: str) -> Iterator[tuple[int, str]]:
    """Yields lines of a page without code blocks, each with its number."""
    in_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code and not line.startswith("    "):
            yield number, _CODE.sub("", line)


def main() -> int:
    """Prints all misuses. Returns the exit status: 1 if there are any."""
    terms = read_terms((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    misuses = list(find_misuses(terms))
    print(*misuses, sep="\n")
    return 1 if misuses else 0


if __name__ == "__main__":
    sys.exit(main())
