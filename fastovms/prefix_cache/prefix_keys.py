"""Makes the keys by which blocks are found on disk: a chain of digests over all that decides what
is in them."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator
from typing import NamedTuple

KEY_SIZE = 32
"""Bytes of a key: a SHA-256 digest. Nobody can make two texts with one key."""


class PrefixNamespace(NamedTuple):
    """Whose prefixes these are, and of which kind.

    Attributes:
        tenant: who may find them; "" where there are no keys.
        salt: that of the requests.
        root: the root of the prefix cache in memory; see `engine.scheduling.blocks`.
    """

    tenant: str
    salt: bytes
    root: int


def prefix_keys(
    fingerprint: bytes, namespace: PrefixNamespace, token_ids: array[int], block_size: int
) -> Iterator[bytes]:
    """Yields the keys of the full blocks of a text, each of which stands for all tokens up to the
    block's end.

    Args:
        fingerprint: stands for the model, and for all else that decides what a block holds.
    """
    tenant = namespace.tenant.encode()
    head = f"{namespace.root} {len(tenant)} {len(namespace.salt)} ".encode()
    digest = hashlib.sha256(b"".join((fingerprint, head, tenant, namespace.salt)))
    tokens = memoryview(token_ids).cast("B")
    size = block_size * token_ids.itemsize
    for end in range(size, len(tokens) + 1, size):
        digest.update(tokens[end - size : end])
        yield digest.digest()
