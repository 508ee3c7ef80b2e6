from __future__ import annotations

from array import array

import pytest

from fastovms.prefix_cache.prefix_keys import PrefixNamespace, prefix_keys

TOKENS = array("q", range(10))
SPACE = PrefixNamespace("t", b"s", 0)


def keys(
    fingerprint: bytes = b"f", space: PrefixNamespace = SPACE, tokens: array[int] = TOKENS
) -> list[bytes]:
    return list(prefix_keys(fingerprint, space, tokens, 4))


def test_each_full_block_has_a_key_that_stands_for_all_before_it() -> None:
    assert len(keys()) == 2
    other_end = keys(tokens=array("q", [*range(7), 99]))
    assert other_end[0] == keys()[0]
    assert other_end[1] != keys()[1]
    assert not set(keys(tokens=array("q", [9, *range(1, 10)]))) & set(keys())


@pytest.mark.parametrize(
    ("fingerprint", "space"),
    [
        (b"g", SPACE),
        (b"f", PrefixNamespace("u", b"s", 0)),
        (b"f", PrefixNamespace("t", b"", 0)),
        (b"f", PrefixNamespace("", b"ts", 0)),
        (b"f", PrefixNamespace("ts", b"", 0)),
        (b"f", PrefixNamespace("t", b"s", -1)),
    ],
)
def test_whatever_decides_the_content_changes_the_keys(
    fingerprint: bytes, space: PrefixNamespace
) -> None:
    assert not set(keys(fingerprint, space)) & set(keys())
