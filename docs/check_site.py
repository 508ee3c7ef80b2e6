"""Checks that the built site loads nothing from elsewhere: no script, style, font or picture.

    mkdocs build --strict --site-dir SITE && python docs/check_site.py SITE

Links that a reader may follow are fine. It prints each fault and exits with 1 if there is one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

_ELSEWHERE: Final = re.compile(r"\s*(?:https?:)?//", re.IGNORECASE)
_CSS_URL: Final = re.compile(
    r"""(?:url\(\s*|@import\s+)["']?((?:https?:)?//[^"')\s]+)""", re.IGNORECASE
)
_LOADING_ATTRIBUTES: Final = frozenset({"src", "srcset", "poster", "data"})
_PASSIVE_LINKS: Final = frozenset({"canonical", "next", "prev", "author", "license", "alternate"})
"""Values of `rel` of links that browsers do not load."""

_LOADS_A_SCRIPT: Final = frozenset({"mermaid"})
"""Classes for which the theme's script loads another one from a content delivery network."""


class _Loads(HTMLParser):
    """Collects what a page loads from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        loading = {name for name in values if name in _LOADING_ATTRIBUTES}
        if tag == "link" and not _PASSIVE_LINKS.intersection(values.get("rel", "").split()):
            loading.add("href")
        for name in loading:
            if _ELSEWHERE.match(values.get(name, "")):
                self.found.append(f"<{tag}> loads {values[name]}")
        for name in _LOADS_A_SCRIPT.intersection(values.get("class", "").split()):
            self.found.append(f"<{tag} class={name}> loads a script from elsewhere")
        self.found += loads_of_style(values.get("style", ""))

    handle_startendtag = handle_starttag


def loads_of_page(text: str) -> list[str]:
    """What an HTML page loads from elsewhere, each in words."""
    parser = _Loads()
    parser.feed(text)
    styles = re.findall(r"<style[^>]*>(.*?)</style>", text, re.DOTALL | re.IGNORECASE)
    return parser.found + [load for style in styles for load in loads_of_style(style)]


def loads_of_style(text: str) -> list[str]:
    """What a style sheet loads from elsewhere, each in words."""
    return [f"a style loads {url}" for url in _CSS_URL.findall(text)]


def faults(site: Path) -> Iterator[str]:
    """Each fault of the files below `site`, with the path of its file."""
    readers = {".html": loads_of_page, ".css": loads_of_style, ".svg": loads_of_page}
    for path in sorted(site.rglob("*")):
        read = readers.get(path.suffix)
        if read is not None:
            yield from (f"{path.relative_to(site)}: {load}" for load in read(path.read_text()))


def main(argv: list[str]) -> int:
    site = Path(argv[0])
    if not (site / "index.html").exists():
        print(f"{site}: there is no site")
        return 1
    found = list(faults(site))
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
