"""Tests that the package and the pages use the words of the glossary in CONTRIBUTING.md."""

import pytest

from docs import glossary
from docs.glossary import ROOT, find_misuses, read_terms

HEAD = "| word | meaning | not | but |\n|---|---|---|---|\n"


def test_package_and_pages_use_the_words_of_the_glossary():
    terms = read_terms((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert len(terms) > 10
    assert not [str(misuse) for misuse in find_misuses(terms)]


@pytest.fixture
def checked(tmp_path, monkeypatch):
    """Returns a function that writes files below an empty root and returns the misuses in them as
    pairs of file name and line."""
    monkeypatch.setattr(glossary, "ROOT", tmp_path)
    (tmp_path / "README.md").write_text("")

    def check(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        terms = read_terms(
            HEAD + "| reasoning | a meaning | `thought`, `'s form` | `my thought` |\n"
        )
        return [misuse.line for misuse in find_misuses(terms)]

    return check


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('x = "ends a Thought here"', [1]),
        ("thought = 1  # it is a thought", [1]),
        ('"""Reads\n    in Ollama\'s form."""', [1]),
        ('x = "thought"', []),
        ("x = 1  # this is my thought process", []),
        ("x = 1  # the name `thought` is kept", []),
        ('x = f"the number {thought} is shown"', []),
        ("x = 1  # thoughtful words are fine", []),
    ],
)
def test_misuses_are_found_in_comments_and_strings(checked, text, lines):
    assert checked("fastovms/module.py", text) == lines


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("One.\nA thought.\n", [2]),
        ("```text\nA thought.\n```\nA thought.\n", [4]),
        ("The tag `thought` and <thought> are code.\n", []),
    ],
)
def test_misuses_are_found_in_pages_outside_code(checked, text, lines):
    assert checked("docs/page.md", text) == lines


def test_missing_glossary_raises_value_error():
    with pytest.raises(ValueError, match="no table begins with"):
        read_terms("# Contributing\n")
