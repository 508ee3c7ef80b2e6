"""A client of stored responses and conversations that records the server's promises and checks them
later."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from http.client import HTTPException, HTTPResponse
from random import Random
from typing import Final

from bench.endurance.json_client import Body, JsonClient
from bench.endurance.server import MODEL

Check = Callable[[int, Body], bool]
"""A function that checks whether a status and a body match a promise."""

FINAL: Final = ("completed", "incomplete", "failed", "cancelled")
_RUNNING: Final = ("queued", "in_progress")
_MAX_ITEMS: Final = 40
_LIST: Final = "/items?order=asc&limit=100"


class Refused(Exception):
    """The server has answered with an unexpected status."""


def exactly(expected: Body) -> Check:
    return lambda status, body: status == 200 and body == expected


def gone(status: int, body: Body) -> bool:
    return status == 404


def ended(status: int, body: Body) -> bool:
    """Checks that a background response has ended, with an error message if it has failed."""
    has_reason = body.get("status") != "failed" or bool(body["error"]["message"])
    return status == 200 and body.get("status") in FINAL and has_reason


def either(*checks: Check) -> Check:
    return lambda status, body: any(check(status, body) for check in checks)


def items_from(first: list[Body], *, at_least: int) -> Check:
    """Checks for a list that begins with the given items and has at least the given number of
    further ones."""

    def check(status: int, body: Body) -> bool:
        if status != 200:
            return False
        data = body["data"]
        return bool(data[: len(first)] == first and len(data) >= len(first) + at_least)

    return check


class StateClient:
    """Performs one operation at a time over a persistent connection.

    Attributes:
        promises: the expected response of each path.
        num_acknowledged: operations that the server has answered completely.
        num_resumed: background responses that continued after a crash.
        num_interrupted: background responses that a crash has ended.
        refusals: answers that are neither success nor an expected refusal.
    """

    def __init__(self, url: str, random: Random) -> None:
        self._http = JsonClient(url)
        self._random = random
        self._items: dict[str, list[Body]] = {}
        self._responses: list[Body] = []
        self._continued: set[str] = set()
        self.promises: dict[str, Check] = {}
        self.num_acknowledged = 0
        self.num_resumed = 0
        self.num_interrupted = 0
        self.refusals: list[str] = []

    def step(self) -> None:
        """Performs a random operation. Raises Refused, or one of `LOST` if the server dies."""
        choices = [self._respond, self._respond, self._stream, self._run_in_background]
        choices += [self._start_conversation] if len(self._items) < 3 else []
        if self._items:
            choices += [self._add_items, self._delete_item, self._update, self._respond_within]
        if self._deletable():
            choices += [self._delete_response]
        self._random.choice(choices)()
        self.num_acknowledged += 1

    def look(self, path: str) -> tuple[int, Body]:
        return self._http.ask("GET", path)

    def check(self, path: str) -> str | None:
        """Returns the fault of the object at a path; None = the promise is kept. Waits for a
        response that is still running."""
        status, body = self.look(path)
        promise = self.promises[path]
        if promise is ended and body.get("status") in _RUNNING:
            self.num_resumed += 1
            _last_response(self._http.send("GET", f"{path}?stream=true"))
            status, body = self.look(path)
        if not promise(status, body):
            return f"{path}: {status} {json.dumps(body)[:300]}"
        if promise is ended:
            self.num_interrupted += body["status"] == "failed"
            self.promises[path] = exactly(body)
        return None

    def restart(self) -> None:
        """Handles a restart of the server after all checks: from now on, an operation that was
        running is either done or not."""
        for id in list(self._items):
            status, body = self.look(f"/v1/conversations/{id}{_LIST}")
            if status == 200:
                self._know_items(id, body["data"])
            else:
                del self._items[id]

    def close(self) -> None:
        self._http.close()

    # Responses

    def _respond(self) -> None:
        self._keep(self._create(**self._perhaps_continued()))

    def _stream(self) -> None:
        response = self._http.send("POST", "/v1/responses", self._request(stream=True))
        self._keep(self._expect((response.status, _last_response(response))))

    def _run_in_background(self) -> None:
        num_tokens = self._random.randrange(1, 300)
        body = self._create(background=True, max_output_tokens=num_tokens)
        path = f"/v1/responses/{body['id']}"
        self.promises[path] = ended
        if self._random.random() < 0.5:
            self._keep(_last_response(self._http.send("GET", f"{path}?stream=true")))

    def _delete_response(self) -> None:
        body = self._random.choice(self._deletable())
        self._responses.remove(body)
        path = f"/v1/responses/{body['id']}"
        self.promises[path] = either(self.promises[path], gone)
        self._expect(self._http.ask("DELETE", path))
        self.promises[path] = gone

    def _create(self, **members: object) -> Body:
        return self._expect(self._http.ask("POST", "/v1/responses", self._request(**members)))

    def _request(self, **members: object) -> Body:
        number = self._random.randrange(1000)
        return {
            "model": MODEL,
            "input": f"Count from {number} to {number + 3}.",
            "max_output_tokens": self._random.randrange(1, 16),
            "temperature": 0,
            **members,
        }

    def _perhaps_continued(self) -> Mapping[str, object]:
        if not self._responses or self._random.random() < 0.5:
            return {}
        previous_id = self._random.choice(self._responses)["id"]
        self._continued.add(previous_id)
        return {"previous_response_id": previous_id}

    def _deletable(self) -> list[Body]:
        """Returns the responses to which no other response refers."""
        return [body for body in self._responses if body["id"] not in self._continued]

    def _keep(self, body: Body) -> None:
        self.promises[f"/v1/responses/{body['id']}"] = exactly(body)
        self._responses.append(body)
        del self._responses[:-20]

    # Conversations

    def _start_conversation(self) -> None:
        body = self._expect(self._http.ask("POST", "/v1/conversations", {}))
        path = f"/v1/conversations/{body['id']}"
        self.promises[path] = exactly(body)
        self._know_items(body["id"], [])

    def _add_items(self) -> None:
        id, path = self._conversation()
        texts = [str(self._random.random()) for _ in range(self._random.randrange(1, 5))]
        items = [{"type": "message", "role": "user", "content": text} for text in texts]
        known = self._items[id]
        old = self.promises[path + _LIST]
        self.promises[path + _LIST] = either(old, items_from(known, at_least=len(items)))
        body = self._expect(self._http.ask("POST", f"{path}/items", {"items": items}))
        self._know_items(id, known + body["data"])
        if len(self._items[id]) > _MAX_ITEMS:
            self._delete_conversation(id)

    def _delete_item(self) -> None:
        id, path = self._conversation()
        if not self._items[id]:
            return
        item = self._random.choice(self._items[id])
        left = [other for other in self._items[id] if other is not item]
        self.promises[path + _LIST] = either(
            self.promises[path + _LIST], items_from(left, at_least=0)
        )
        self._expect(self._http.ask("DELETE", f"{path}/items/{item['id']}"))
        self._know_items(id, left)

    def _update(self) -> None:
        _, path = self._conversation()
        value = str(self._random.random())
        old = self.promises[path]
        self.promises[path] = either(old, lambda _, body: body.get("metadata") == {"value": value})
        body = self._expect(self._http.ask("POST", path, {"metadata": {"value": value}}))
        self.promises[path] = exactly(body)

    def _respond_within(self) -> None:
        id, path = self._conversation()
        known = self._items[id]
        old = self.promises[path + _LIST]
        self.promises[path + _LIST] = either(old, items_from(known, at_least=2))
        self._keep(self._create(conversation=id))
        self.promises[path + _LIST] = items_from(known, at_least=2)
        status, body = self.look(path + _LIST)
        if not self.promises[path + _LIST](status, body):
            raise Refused(f"{path}: an answer is not in it though it was acknowledged")
        self._know_items(id, body["data"])
        if len(self._items[id]) > _MAX_ITEMS:
            self._delete_conversation(id)

    def _delete_conversation(self, id: str) -> None:
        path = f"/v1/conversations/{id}"
        for each in (path, path + _LIST):
            self.promises[each] = either(self.promises[each], gone)
        del self._items[id]
        self._expect(self._http.ask("DELETE", path))
        for each in (path, path + _LIST):
            self.promises[each] = gone

    def _conversation(self) -> tuple[str, str]:
        id = self._random.choice(list(self._items))
        return id, f"/v1/conversations/{id}"

    def _know_items(self, id: str, items: list[Body]) -> None:
        self._items[id] = items
        path = f"/v1/conversations/{id}{_LIST}"
        self.promises[path] = lambda status, body: status == 200 and body["data"] == items

    # Answers

    def _expect(self, answer: tuple[int, Body]) -> Body:
        status, body = answer
        if status != 200 or body.get("store") is False:
            self.refusals.append(f"{status} {json.dumps(body)[:300]}")
            raise Refused(self.refusals[-1])
        return body


def _last_response(response: HTTPResponse) -> Body:
    """Reads a stream to its end."""
    last: Body | None = None
    while line := response.readline():
        if line.startswith(b"data: {"):
            last = json.loads(line.removeprefix(b"data: "))
        elif line.startswith(b"data: [DONE]"):
            response.read()
            assert last is not None
            return dict(last["response"])
    raise HTTPException("the stream broke off")
