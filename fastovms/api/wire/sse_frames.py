"""Makes frames of server-sent events (HTML Living Standard, section 9.2)."""

from __future__ import annotations

from typing import Final

START: Final = b"data: "
_NAME: Final = b"event: "
END: Final = b"\n\n"
"""What stands around an event's JSON, which has no line ends, so that `END` is only there."""


def frame(data: bytes, name: str = "") -> bytes:
    """Returns the frame of one event; it has an `event:` line where a name is given."""
    event = START + data + END
    return _NAME + name.encode() + b"\n" + event if name else event


def split_frame(event: bytes) -> tuple[bytes, bytes]:
    """Returns the name and the JSON of a frame that has an `event:` line."""
    name, _, data = event.removeprefix(_NAME).partition(b"\n")
    return name, data[len(START) : -len(END)]


def without_name(event: bytes) -> bytes:
    """Returns a frame without its `event:` line, if it has one."""
    return event[event.index(START) :]


DONE: Final = frame(b"[DONE]")
