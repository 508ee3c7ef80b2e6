"""A log gives back the events that it was given."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fastovms.api.responses.stored.event_log import EventLog

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
    loaded = EventLog.load(log.dump(last))
    assert loaded.is_closed
    assert read_all(loaded, start) == [*frames, *last][start:]


def test_a_long_log_is_compressed():
    log = EventLog()
    frames = [b'data: {"sequence_number":%d,"delta":"some text"}\n\n' % n for n in range(50_000)]
    for frame in frames:
        log.append([frame])
    assert sum(map(len, log._packs)) < sum(map(len, frames)) / 5
    assert read_all(log, 0) == frames
    assert read_all(EventLog.load(log.dump([])), 49_990) == frames[49_990:]


def read_all(log: EventLog, start: int) -> list[bytes]:
    frames: list[bytes] = []
    while start + len(frames) < log.num_events:
        some = log.read(start + len(frames))
        assert some
        frames += some
    return frames


def test_listeners_are_told_until_they_are_forgotten():
    log = EventLog()
    seen = []
    log.listen("a", lambda: seen.append(log.num_events))
    log.append([b"x\n\n"])
    log.append([], closes=True)
    log.forget("a")
    log.append([b"x\n\n"])
    assert seen == [1, 1]
