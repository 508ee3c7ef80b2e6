"""A file that changes is noticed, one that is missing is not."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from fastovms.service.file_watch import FileWatch


async def test_changes_are_noticed(tmp_path: Path) -> None:
    path, other = tmp_path / "list", tmp_path / "other"
    path.write_text("a")
    changes: asyncio.Queue[str] = asyncio.Queue()
    watch = FileWatch(path, 0.005, lambda: changes.put_nowait(path.read_text()))
    watch.start(asyncio.get_running_loop())
    async with asyncio.timeout(20):
        other.write_text("replaced")
        os.replace(other, path)
        assert await changes.get() == "replaced"
        path.unlink()
        await asyncio.sleep(0.05)
        assert changes.empty()
        path.write_text("back")
        assert await changes.get() in ("", "back")
    watch.stop()


async def test_no_interval_is_no_look(tmp_path: Path) -> None:
    watch = FileWatch(tmp_path, 0, lambda: None)
    watch.start(asyncio.get_running_loop())
    assert watch._timer is None
    watch.stop()
