"""Clients that ask for responses over one WebSocket connection, one after the other or at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import orjson
from wsproto.connection import Connection, ConnectionType
from wsproto.events import CloseConnection, Ping, TextMessage

from fastovms.api.body import LARGE
from tests.simulation.client import ClientConnection, Gone, connect, render
from tests.simulation.dialogues import ENDS, PATH, Kept, text_of
from tests.simulation.expected import ActingClient

_UPGRADE: Final = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "c2ltdWxhdGVkIGNsaWVudA==",
}


class SocketClient(ActingClient):
    """One client with one connection.

    Args:
        may_lose: whether the connection may end, or a response fail, by an accident.
        may_refuse: whether a response may fail because too many requests wait.
        is_removed: returns whether the client's key does not count any more.
    """

    def __init__(
        self, *given: Any, may_lose: bool, may_refuse: bool, is_removed: Callable[[], bool]
    ) -> None:
        super().__init__(*given)
        self._may_lose = may_lose
        self._may_refuse = may_refuse
        self._is_removed = is_removed
        self._frames = Connection(ConnectionType.CLIENT)
        self._previous: str | None = None
        self._history = ""

    async def run(self) -> None:
        action = self.action
        connection = connect(self.world, self.port, action.line, action.sip)
        connection.send(render("GET", PATH, None, {**_UPGRADE, **action.headers}))
        try:
            async with asyncio.timeout(action.after_seconds if action.leaves else None):
                if await self._open(connection):
                    await self._talk(connection)
        except TimeoutError:
            pass
        except Gone as gone:
            if not self._may_lose:
                self.fail("lost", f"the connection ends: {gone}")
        finally:
            if action.leaves == "reset":
                connection.reset()
            else:
                connection.close()

    async def _open(self, connection: ClientConnection) -> bool:
        status = await connection.line()
        if status.startswith(b"HTTP/1.1 101 "):
            while await connection.line():
                pass
            return True
        is_lost = (self._may_lose and b" 503 " in status) or (
            self.action.loses and (b" 401 " in status or b" 404 " in status)
        )
        if not is_lost and b" 503 " in status:  # upgrades do not wait for a server that starts
            connection.half_close()
            is_lost = b"the model is loading" in await connection.rest()
        if not is_lost:
            self.fail("answer", f"the upgrade is answered by {status!r}")
        return False

    async def _talk(self, connection: ClientConnection) -> None:
        events = self._events(connection)
        turns = [f"turn {turn} {self.action.prompt}" for turn in range(1 + self.action.repeats)]
        if self.action.pipelines:
            for text in turns:
                await self._create(connection, text, None)
        for text in turns:
            if not self.action.pipelines:
                await self._create(connection, text, self._previous)
            if not await self._read(connection, events, text):
                return
        connection.send(self._frames.send(CloseConnection(code=1000)))

    async def _create(self, connection: ClientConnection, text: str, previous: str | None) -> None:
        body = {"type": "response.create", "model": self.action.model, "input": text}
        body |= self.action.fields
        if self.action.number % 4 == 3 and not self.action.drip:
            body["user"] = "x" * LARGE  # such a message is read in a thread
        if previous is not None:
            body["previous_response_id"] = previous
        message = orjson.dumps(body).decode()
        size, seconds = self.action.drip or (len(message), 0.0)
        for start in range(0, len(message), size):
            await asyncio.sleep(seconds)
            is_last = start + size >= len(message)
            part = TextMessage(data=message[start : start + size], message_finished=is_last)
            connection.send(self._frames.send(part))

    async def _events(self, connection: ClientConnection) -> AsyncIterator[Any]:
        """Yields the events of the server. Raises Gone at its end."""
        message = ""
        while True:
            self._frames.receive_data(await connection.some())
            for event in self._frames.events():
                match event:
                    case TextMessage(data=data):
                        message += data
                        if event.message_finished:
                            yield orjson.loads(message)
                            message = ""
                    case Ping():
                        connection.send(self._frames.send(event.response()))
                    case CloseConnection(code=code):
                        raise Gone(f"close {code}")

    async def _read(
        self, connection: ClientConnection, events: AsyncIterator[Any], text: str
    ) -> bool:
        """Reads the events of one response, and returns whether the next one may follow."""
        action = self.action
        prompt = f"{'' if action.pipelines else self._history}u:{text};"
        size = len(prompt.encode()) + 1
        max_model_len = self.settings.max_model_len
        most = min(action.fields["max_output_tokens"], max_model_len - size)
        sent = self.send_text(f"{prompt}>", most)
        tokens = sent.continuation or []
        said, numbers, last = "", [], None
        is_cancelled = False
        async for event in events:
            if "sequence_number" in event:
                numbers.append(event["sequence_number"])
            if event["type"] == "response.output_text.delta":
                said += event["delta"]
                if action.ends == "cancel" and not is_cancelled:
                    is_cancelled = True
                    cancel = orjson.dumps({"type": "response.cancel"}).decode()
                    connection.send(self._frames.send(TextMessage(data=cancel)))
            elif event["type"] in ENDS or (event["type"] == "error" and "error" in event):
                if event.get("error", {}).get("param") == "response_id":
                    continue  # what was to be cancelled had ended
                last = event
                break
        assert last is not None
        if self._is_removed():
            self.fail("key", "a response for a key that was removed")
        self.world.note("socket", action.number, last["type"])
        error = last.get("error") or last.get("response", {}).get("error")
        if error is not None:
            is_too_long = size >= max_model_len and "context length" in error["message"]
            is_refused = self._may_refuse and "which is the limit" in error["message"]
            if not (is_too_long or is_refused or self._may_lose):
                self.fail("answer", f"an error: {last}")
            return False
        body = last["response"]
        reason = "completed" if len(tokens) < most else "incomplete"
        expected = bytes(tokens).decode(errors="replace")
        if body["status"] == "cancelled" and is_cancelled:
            reason, expected = "cancelled", expected[: len(said)]
        if numbers != list(range(len(numbers))):
            self.fail("events", f"the events are {numbers}")
        got = (body["status"], said, text_of(body))
        if got != (reason, expected, expected):
            self.fail("response", f"got {got}, not {(reason, expected)}")
        self.check_cached(sent, body["usage"])
        self._previous = body["id"]
        self._history = f"{prompt}a:{expected};"
        if body["store"]:
            kept = Kept(body["id"], action, expected, reason, background=False, body=body)
            self.kept.append(kept)
        return not is_cancelled
