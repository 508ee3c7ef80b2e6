"""Bodies in pieces of every size."""

from __future__ import annotations

from itertools import pairwise
from mmap import mmap
from random import Random

import pytest

from fastovms.http.parsing.body_buffer import MAPPED, BodyBuffer


@pytest.mark.parametrize(
    "sizes",
    [
        [1],
        [1, 2, 3],
        [MAPPED - 1],
        [MAPPED],
        [MAPPED - 1, 1],
        [3 * MAPPED + 5],
        [MAPPED // 3] * 20,
        [MAPPED + 1, 7 * MAPPED, 1],
    ],
)
def test_content_is_what_came(sizes: list[int]) -> None:
    content = Random(1).randbytes(sum(sizes))
    ends = [sum(sizes[:position]) for position in range(len(sizes) + 1)]
    buffer = BodyBuffer()
    for start, end in pairwise(ends):
        buffer.append(content[start:end])
    taken = buffer.take()
    assert len(taken) == len(content)
    assert taken[:] == content
    assert isinstance(taken, mmap) == (len(content) >= MAPPED)
