"""Admits requests, of which some have bodies that are taken piece by piece."""

from __future__ import annotations

from collections.abc import Callable

from fastovms.http.parsing.faults import large_body_fault
from fastovms.http.routing.dispatch import Dispatcher
from fastovms.http.routing.messages import Handler, Request, Response, UploadHandler


def admit(
    dispatcher: Dispatcher,
    request: Request,
    content_length: int | None,
    largest_body: int,
    on_change: Callable[[], None],
) -> Handler | Response:
    """Decides who answers a request, as `Dispatcher.admit` does. What takes the body of an upload
    is the request's `sink` then.

    Args:
        content_length: the size of the body that follows; None = not known yet.
        largest_body: of those that lie in memory.
        on_change: what that sink calls.

    Raises:
        Fault: the body is too large to lie in memory.
    """
    admitted = dispatcher.admit(request)
    if not isinstance(admitted, UploadHandler):
        if content_length is not None and content_length > largest_body:
            raise large_body_fault(largest_body)
        return admitted
    sink = admitted.open_sink(request)
    if isinstance(sink, Response):
        return sink
    request.sink = sink
    sink.on_change = on_change
    return admitted
