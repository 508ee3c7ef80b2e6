"""A log gives back the events that it was given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastovms.api.responses.stored.event_log import EventLog, pack_frames
from fastovms.state.store import EventPack

FRAMES = st.lists(st.binary(max_size=20).map(lambda data: b"data: %b\n\n" % data.hex().encode()))


@given(st.lists(FRAMES, max_size=5), FRAMES, st.integers(0, 30))
def test_the_log_gives_back_what_it_was_given(batches, last, start):
    log = EventLog()
    for batch in batches:
        log.append(batch)
        log._seal()
    frames = [frame for batch in batches for frame in batch]
    assert log.num_events == len(frames)
    assert read_all(log, start) == frames[start:]
    loaded = EventLog()
    loaded.extend(EventPack(0, log.dump(last)))
    assert read_all(loaded, start) == [*frames, *last][start:]


def test_a_long_log_is_compressed():
    log = EventLog()
    frames = [b'data: {"sequence_number":%d,"delta":"some text"}\n\n' % n for n in range(50_000)]
    for frame in frames:
        log.append([frame])
    assert sum(map(len, log._packs)) < sum(map(len, frames)) / 5
    assert read_all(log, 0) == frames
    loaded = EventLog(49_990)
    loaded.extend(EventPack(0, log.dump([])))
    assert loaded.num_bytes < 64 * 1024
    assert read_all(loaded, 49_990) == frames[49_990:]


def read_all(log: EventLog, start: int) -> list[bytes]:
    frames: list[bytes] = []
    while start + len(frames) < log.num_events:
        some = log.read(start + len(frames))
        assert some
        frames += some
    return frames


def pack(start: int, end: int) -> EventPack:
    frames = [b"data: %d\n\n" % number for number in range(start, end)]
    return EventPack(start, pack_frames(frames))


@given(st.integers(0, 12), st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_a_log_takes_packs_that_overlap(start, lengths):
    """As a follower reads them while the last one is still written in place of a shorter one."""
    log, position = EventLog(start), 0
    for length in lengths:
        for shorter in range(1, length + 1):
            log.extend(pack(position, position + shorter))
        position += length
    expected = [b"data: %d\n\n" % number for number in range(start, position)]
    assert read_all(log, start) == expected
    log.append([b"data: end\n\n"], closes=True)
    assert read_all(log, start) == [*expected, b"data: end\n\n"]


def test_a_log_has_no_gaps():
    log = EventLog()
    log.extend(pack(0, 2))
    with pytest.raises(ValueError, match="from 2 to 3"):
        log.extend(pack(3, 4))


def test_listeners_are_told_until_they_are_forgotten():
    log = EventLog()
    seen = []
    log.listen("a", lambda: seen.append(log.num_events))
    log.append([b"x\n\n"])
    log.append([], closes=True)
    log.forget("a")
    log.append([b"x\n\n"])
    assert seen == [1, 1]
