"""Declares what is known of a batch."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from fastovms.batches.line_usage import BatchUsage


class BatchStatus(StrEnum):
    """Where a batch stands on its way, in OpenAI's words."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


ENDED: Final = frozenset(
    {BatchStatus.FAILED, BatchStatus.COMPLETED, BatchStatus.EXPIRED, BatchStatus.CANCELLED}
)


class BatchError(msgspec.Struct, frozen=True):
    """What is wrong with a batch, or with a line of its input.

    Attributes:
        line: its number, from 1; None = it is not about one line.
    """

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class BatchRecord(msgspec.Struct, kw_only=True):
    """A batch. Times are Unix times; None = it has not come to that.

    Attributes:
        tenant: the key that may see it; "" where there are no keys.
        owner: the key or address in whose share it counts; "" = the tenant.
        output_age: seconds after which its files expire.
        output_id, error_id: those that its files get, if they have any line.
        num_lines: the number of its last line, known once it was validated.
        outcome: what it becomes once its files are there.
        num_idle_starts: how many processes in a row have ended before it was `num_done` on.
    """

    id: str
    tenant: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    output_id: str
    error_id: str
    metadata: dict[str, str] | None = None
    output_age: int | None = None
    status: BatchStatus = BatchStatus.VALIDATING
    outcome: BatchStatus = BatchStatus.COMPLETED
    model: str | None = None
    errors: list[BatchError] = []
    num_lines: int = 0
    total: int = 0
    completed: int = 0
    failed: int = 0
    usage: BatchUsage = msgspec.field(default_factory=BatchUsage)
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    num_idle_starts: int = 0
    num_done: int = 0
    owner: str = ""

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED

    @property
    def shared_by(self) -> str:
        """The owner in whose share it counts."""
        return self.owner or self.tenant

    @property
    def key(self) -> str:
        """What the ids of its results have in common."""
        return self.id.removeprefix("batch_")[:16]

    def enter(self, status: BatchStatus, now: float) -> None:
        """Moves it on, and notes when."""
        self.status = status
        setattr(self, f"{status}_at", int(now))
