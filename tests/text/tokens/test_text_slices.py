from __future__ import annotations

import pytest

from fastovms.text.tokens.text_slices import slices

WORDS = "ab  cde f\n g " * 40 + "end"


@pytest.mark.parametrize("from_end", [False, True])
@pytest.mark.parametrize("text", [WORDS, "a" * 1000, " " * 1000, "a", "", "a b" * 700])
@pytest.mark.parametrize(("first", "longest"), [(8, 32), (20, 20), (100, 10)])
def test_slices_are_the_text(text, first, longest, from_end):
    found = list(slices(text, first, longest, from_end=from_end))
    assert "".join(found[::-1] if from_end else found) == text
    sizes = [min(longest, first * 2**i) for i in range(len(found))]
    assert all(0 < len(each) <= size for each, size in zip(found, sizes, strict=True))


@pytest.mark.parametrize("from_end", [False, True])
@pytest.mark.parametrize("keeps_spaces", [False, True])
def test_texts_are_cut_at_single_spaces(from_end, keeps_spaces):
    text = " ".join(["word"] * 200) + "  " + "x" * 20
    found = list(slices(text, 50, 50, from_end=from_end, keeps_spaces=keeps_spaces))
    if from_end:
        found.reverse()
    assert len(found) > 10
    assert ("" if keeps_spaces else " ").join(found) == text
    assert all(each.startswith(" ") == keeps_spaces for each in found[1:])
