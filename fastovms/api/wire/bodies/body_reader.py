"""Decodes request bodies in threads when they are large, so that neither the event loop nor another
client waits for one."""

from __future__ import annotations

from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from fastovms.api.wire.bodies.body import LARGE, decode
from fastovms.api.wire.bodies.fair_thread import FairThread
from fastovms.http.routing.messages import Request

Body = TypeVar("Body", bound=msgspec.Struct)

_HUGE: Final = 1024 * 1024
"""Bytes from which a body may take more than a second of its thread. A smaller one takes some
hundredths."""


class BodyReader:
    """Decodes small bodies at once, large ones in a thread, and huge ones in another, for which no
    large one waits. There are not more threads: a piece of that work holds the GIL, and the event
    loop should wait for few such pieces."""

    def __init__(self) -> None:
        self._large: FairThread[Any] = FairThread("large bodies", per_client=1024, total=4096)
        self._huge: FairThread[Any] = FairThread("huge bodies", per_client=64, total=256)

    async def read(self, request: Request, schema: type[Body], *, default: bytes = b"") -> Body:
        """Returns the body as `decode` reads it.

        Args:
            default: stands for an empty body.

        Raises:
            Overloaded: too many bodies wait for a thread.
            BackendUnavailable: the reader is closed.
            MalformedBody, InvalidField: as `decode` does.
        """
        body = request.body or default
        if len(body) < LARGE:
            return decode(body, schema)
        thread = self._large if len(body) < _HUGE else self._huge
        decoded: Body = await thread.run(request.sender, partial(decode, body, schema))
        return decoded

    def close(self) -> None:
        """Refuses what waits, and ends the threads."""
        self._large.close()
        self._huge.close()
