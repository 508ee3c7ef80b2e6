"""The requests that wait on one connection: how many may, and what becomes of their bodies."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fastovms.http.messages import Request, Response
from fastovms.http.protocol import PendingRequest, PendingRequests


def pending(path: str) -> PendingRequest:
    return PendingRequest(Request("POST", path), Response(200), final=False)


@pytest.mark.parametrize(
    ("num_waiting", "is_blocked", "is_full"),
    [(15, True, False), (16, True, True), (16, False, False), (511, False, False),
     (512, False, True)],
)  # fmt: skip
def test_queue_is_full_at_its_limit(num_waiting, is_blocked, is_full):
    server = SimpleNamespace(config=SimpleNamespace(max_pipelined=16))
    queue = PendingRequests([pending("/")] * num_waiting)
    assert queue.is_full(server, is_blocked=is_blocked) is is_full


def test_dropped_pending_requests_free_their_bodies():
    freed = []
    server = SimpleNamespace(give_back_body=lambda request: freed.append(request.path))
    queue = PendingRequests([pending("/a"), pending("/b")])
    queue.drop(server)
    assert (freed, len(queue)) == (["/a", "/b"], 0)
