"""Decides which frames of a stream carry `usage`, by its `stream_options`: none, the last, or each
(`continuous_usage_stats`)."""

from __future__ import annotations

import orjson

from fastovms.api.generation.envelope import closing_members, usage_body
from fastovms.api.generation.generate import TextGeneration
from fastovms.api.wire.bodies.request_schemas import StreamOptions
from fastovms.api.wire.sse_frames import END


class StreamUsage:
    """The usage of one stream.

    Attributes:
        is_continuous: whether each frame tells what its choice has come to.
    """

    def __init__(self, generation: TextGeneration, options: StreamOptions) -> None:
        self._generation = generation
        self._is_told = options.include_usage
        self.is_continuous = options.include_usage and options.continuous_usage_stats

    def member(self, choice: int | None) -> bytes:
        """Returns the `usage` of a frame, with a comma before it: null where only the last frame
        tells it, nothing where none does.

        Args:
            choice: the frame's; None = the frame is the same for several.
        """
        if not self._is_told:
            return b""
        if choice is None or not self.is_continuous:
            return b',"usage":null'
        return b',"usage":' + orjson.dumps(usage_body(self._generation.usage_of(choice)))

    def last_frame(self, head: bytes) -> bytes:
        """Returns the frame that tells the usage of all choices, and perhaps how long it took, and
        has none of them itself; nothing where no frame is to.

        Args:
            head: the frame up to the bracket that opens its choices.
        """
        if not self._is_told:
            return b""
        members = orjson.dumps(closing_members(self._generation.usage))
        return head + b"]," + members[1:] + END
