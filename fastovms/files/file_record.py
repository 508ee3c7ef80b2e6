"""Declares what is known of a file beside its content."""

from __future__ import annotations

from typing import Final

import msgspec

PURPOSES: Final = ("assistants", "batch", "evals", "fine-tune", "user_data", "vision")
"""What clients may say that a file is for."""

BATCH_OUTPUT: Final = "batch_output"


class FileRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a file.

    Attributes:
        tenant: whose it is.
        name: what its client calls it, which is no path here.
        size: in bytes.
        created_at, expires_at: Unix times; None = it does not expire.
    """

    id: str
    tenant: str
    name: str
    purpose: str
    size: int
    created_at: int
    expires_at: int | None = None
