"""Keeps the state in memory as long as its file cannot be had."""

from __future__ import annotations

from collections.abc import Sequence

from fastovms.state.sqlite.database import Database
from fastovms.state.sqlite.disk_return import DiskReturn
from fastovms.state.state_database import Operation, OperationOutcome
from fastovms.state.tables import Totals


class MemoryFallback:
    """Implements `StateDatabase` by a database in memory, and by its file once that can be had.

    Args:
        memory: it is closed when everything in it is in the file.
        disk_return: moves the state to the file.
    """

    def __init__(self, memory: Database, disk_return: DiskReturn) -> None:
        self._database = memory
        self._disk_return: DiskReturn | None = disk_return

    @property
    def is_on_disk(self) -> bool:
        return self._database.is_on_disk

    @property
    def totals(self) -> Totals:
        return self._database.totals

    @property
    def trouble(self) -> str:
        disk_return = self._disk_return
        return "" if disk_return is None else f"responses are kept in memory: {disk_return.reason}"

    def transact(self, operations: Sequence[Operation]) -> list[OperationOutcome]:
        return self._database.transact(operations)

    def keep_house(self) -> float:
        """Moves the state to the file if that is due, and evicts what is.

        Raises:
            StateFailed: nothing is evicted.
        """
        self._return_to_disk()
        seconds = self._database.keep_house()
        if self._disk_return is None:
            return seconds
        return min(seconds, self._disk_return.seconds_left())

    def close(self) -> None:
        self._database.close()

    def _return_to_disk(self) -> None:
        if self._disk_return is None or self._disk_return.seconds_left():
            return
        file = self._disk_return.attempt(self._database)
        if file is not None:
            memory, self._database, self._disk_return = self._database, file, None
            memory.close()
