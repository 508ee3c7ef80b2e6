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
        tenant: the key that may see it; "" where there are no keys.
        owner: the key or address in whose share it counts; "" = the tenant.
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
    owner: str = ""

    @property
    def shared_by(self) -> str:
        """The owner in whose share it counts."""
        return self.owner or self.tenant
