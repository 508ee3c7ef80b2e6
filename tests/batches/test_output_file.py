"""What a file has that is no result of the batch stays there."""

from __future__ import annotations

import pytest

from fastovms.batches.batch_line import LineAnswer
from fastovms.batches.output_file import open_output
from fastovms.errors import ConfigurationError
from fastovms.system.disk_threads import DiskThreads

KEY = "0123456789abcdef"
ANSWER = LineAnswer(200, "r", b"{}")


async def test_goes_on_where_it_was(tmp_path) -> None:
    path = tmp_path / "out"
    async with open_output(path, KEY, 3, DiskThreads("a")) as log:
        log.add(2, "b", ANSWER)
        log.add(1, "a", ANSWER)
        await log.flush()
        with pytest.raises(ConfigurationError, match="another process uses it"):
            await open_output(path, KEY, 3, DiskThreads("a")).__aenter__()
    whole = path.read_bytes()
    for cut in (1, 20, len(whole.splitlines()[-1]) - 3):
        path.write_bytes(whole[:-cut])
        async with open_output(path, KEY, 3, DiskThreads("a")) as log:
            assert [log.is_done(number) for number in (1, 2, 3)] == [False, True, False]


@pytest.mark.parametrize(
    ("foreign", "number"),
    [
        (b"notes of somebody", 2),
        (b"notes of somebody\n", 2),
        (b'{"id":"batch_req_another', 2),
        (b"\n", 2),
    ],
)
async def test_keeps_what_is_foreign(tmp_path, foreign: bytes, number: int) -> None:
    path = tmp_path / "out"
    async with open_output(path, KEY, 3, DiskThreads("a")) as log:
        log.add(2, "b", ANSWER)
        await log.flush()
    content = path.read_bytes() + foreign
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=f"line {number} of .* is no result"):
        await open_output(path, KEY, 3, DiskThreads("a")).__aenter__()
    assert path.read_bytes() == content


async def test_cannot_be_had(tmp_path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be written: No such file"):
        await open_output(tmp_path / "none" / "out", KEY, 3, DiskThreads("a")).__aenter__()
