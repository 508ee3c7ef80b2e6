"""Clients of the Responses API that come back after a loss and hold the server to its answers.

What is acknowledged must be there: an answer with an id that the server keeps, or an event of a
stream in the background. It may not change any more, whatever happens to the server.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from tests.simulation.client import (
    Answer,
    BadAnswer,
    ClientConnection,
    FrameLimit,
    Gone,
    ask,
    connect,
    get,
    read_answer,
    render,
)
from tests.simulation.expected import ActingClient, SentText
from tests.simulation.network import FAST, Line
from tests.simulation.server import Port
from tests.simulation.workload import Action, headers_of
from tests.simulation.world import World

PATH: Final = "/v1/responses"
ENDS: Final = ("response.completed", "response.incomplete", "response.failed")
_PATIENCE: Final = 600.0

_LATER: Final = "said later"
"""What a client adds to its conversation once its last response was accepted."""


@dataclass
class Kept:
    """A response that the server has acknowledged.

    Attributes:
        text: what it must say; None = its tokens are drawn, so its events must agree with it.
        events: the events that have been seen, by number.
        body: the response as it was told at its end; None = it was not.
        is_deleted: whether it must not be found any more.
        sent: its prompt; None = this is not known.
    """

    id: str
    action: Action
    text: str | None
    reason: str
    background: bool
    events: dict[int, Any] = field(default_factory=dict)
    body: Any = None
    is_deleted: bool = False
    is_strict: bool = True
    sent: SentText | None = None

    @property
    def paths(self) -> list[tuple[str, str]]:
        """The methods and paths that no other tenant may use."""
        path = f"{PATH}/{self.id}"
        reads = [("GET", one) for one in (path, f"{path}?stream=true", f"{path}/input_items")]
        return [*reads, ("POST", f"{path}/cancel"), ("DELETE", path)]


@dataclass
class KeptConversation:
    """A conversation that the server has acknowledged, with the texts that it must have.

    Attributes:
        may_have_more: whether a turn may have been added of which nothing was told.
    """

    id: str
    action: Action
    texts: list[str] = field(default_factory=list)
    may_have_more: bool = False
    is_strict: bool = True

    @property
    def paths(self) -> list[tuple[str, str]]:
        """The methods and paths that no other tenant may use."""
        path = f"/v1/conversations/{self.id}"
        return [("GET", path), ("GET", f"{path}/items"), ("DELETE", path)]


class Dialogue(ActingClient):
    """One client of the Responses API.

    Args:
        is_strict: whether events must be stored before they are told, as they are on a disk that
            is in order.
    """

    def __init__(self, *given: Any, is_strict: bool) -> None:
        super().__init__(*given)
        self._is_strict = is_strict
        self._prompt = ""
        self._conversation: KeptConversation | None = None

    async def run(self) -> None:
        previous: Kept | None = None
        if self.action.converses:
            answer = await self.call("POST", "/v1/conversations", {})
            if answer.status != 200:
                return
            self._conversation = KeptConversation(
                answer.json["id"], self.action, is_strict=self._is_strict
            )
            self.kept.append(self._conversation)
        for turn in range(1 + self.action.repeats):
            text = self.action.prompt if turn == 0 else f"turn {turn}"
            previous = await self._ask(text, previous, is_last=turn == self.action.repeats)
            if previous is None:
                return

    async def _ask(self, text: str, previous: Kept | None, *, is_last: bool) -> Kept | None:
        """Asks once. Returns the response when it is complete; None = it is not."""
        action, world = self.action, self.world
        prompt = f"{self._prompt}u:{text};"
        size, most = len(prompt.encode()) + 1, action.fields["max_output_tokens"]
        body = {"model": action.model, "input": text, **action.fields}
        conversation = self._conversation
        if conversation is not None:
            body["conversation"] = conversation.id
            conversation.may_have_more = True
        elif previous is not None:
            body["previous_response_id"] = previous.id
        max_model_len = self.settings.max_model_len
        most = min(most, max_model_len - size)
        said, reason = None, ""
        # A turn whose end a bad disk did not store is made again: later turns may not see it, and
        # it may see them.
        is_alone = not self._prompt and conversation is None
        is_known = action.fields["temperature"] == 0 and (self._is_strict or is_alone)
        sent = self.send_text(f"{prompt}>", most, is_known=is_known)
        if sent.continuation is not None:
            said = bytes(sent.continuation).decode(errors="replace")
            reason = "completed" if len(sent.continuation) < most else "incomplete"
        if size >= max_model_len:
            said, reason = "", "failed"  # where the model must be loaded before this is seen
        background, streams = action.fields["background"], action.fields["stream"]

        def acknowledge(id: str) -> Kept:
            kept = Kept(id, action, said, reason, background, is_strict=self._is_strict, sent=sent)
            self.kept.append(kept)
            world.note("acknowledged", id)
            return kept

        answer = Answer(asked_at=world.now)
        kept: Kept | None = None
        connection = connect(world, self.port, action.line, action.sip)
        connection.send(render("POST", PATH, body, action.headers))
        try:
            await self._read(connection, answer, action.after_frames if background else 0)
        finally:
            connection.close()
        if answer.status == 0:
            return None
        if answer.status != 200:
            if size >= max_model_len and answer.status == 400:
                return None
            if b"is not finished yet" in answer.body and not self._is_strict:
                return None  # its end was told, but could not be stored, and is made again
            if answer.status not in (429, 500, 503, *((401, 404) if action.loses else ())):
                self.fail("answer", f"status {answer.status}: {answer.body[:300]!r}")
            return None
        if streams:
            answer.frames = [event for event in answer.frames if event != "[DONE]"]
            first = next((e for e in answer.frames if "response" in e), None)
            if first is None:
                return None
            id = first["response"]["id"]
            last = answer.frames[-1]
            ended = last.get("type") in ENDS and last["response"]["store"]
            if background or (ended and answer.is_whole):
                kept = acknowledge(id)
                self._note_events(kept, answer.frames)
        elif answer.is_whole and (background or answer.json["store"]):
            kept = acknowledge(answer.json["id"])
            if not background:
                self._note_end(kept, answer.json)
        if kept is None:
            return None
        if conversation is not None and background and is_last:
            item = {"role": "user", "content": _LATER}
            path = f"/v1/conversations/{conversation.id}/items"
            await self.call("POST", path, {"items": [item]})
        await asyncio.sleep(action.after_seconds)
        if background and action.ends:
            await self._end(kept)
            return None
        is_complete = await self._follow(kept)
        if kept.body is not None:
            self._prompt = f"{prompt}a:{text_of(kept.body)};"
        has_said = kept.body is not None and kept.body.get("error") is None
        if conversation is not None and has_said and kept.body["status"] != "cancelled":
            conversation.texts += [text, text_of(kept.body)]
            conversation.may_have_more = False
        return kept if is_complete else None

    async def _end(self, kept: Kept) -> None:
        """Cancels or deletes a response in the background."""
        path = f"{PATH}/{kept.id}"
        if self.action.ends == "delete":
            answer = await self.call("DELETE", path)
            if answer.status not in (200, 404):  # 404 where the first answer was lost
                self.fail("answer", f"a deletion has status {answer.status}: {answer.body!r}")
            kept.is_deleted = True
            return
        answer = await self.call("POST", f"{path}/cancel")
        if answer.status == 400 and b"cannot be cancelled" in answer.body:
            await self._follow(kept)
        elif answer.status != 200:
            self.fail("answer", f"a cancellation has status {answer.status}: {answer.body!r}")
        else:
            self._note_end(kept, answer.json)

    async def _read(self, connection: ClientConnection, answer: Answer, most_frames: int) -> None:
        try:
            await read_answer(self.world, connection, answer, most_frames or None)
        except (Gone, FrameLimit) as end:
            answer.gone = str(end) or "left"

    async def _follow(self, kept: Kept) -> bool:
        """Follows a response to its end, over as many connections as it takes."""
        world, ends_at = self.world, self.world.now + _PATIENCE
        while kept.body is None:
            if world.now > ends_at:
                self.fail("hang", f"{kept.id} does not end")
                return False
            path = f"{PATH}/{kept.id}"
            if self.action.fields["stream"]:
                path += f"?stream=true&starting_after={max(kept.events, default=-1)}"
                if not kept.events:
                    path = f"{PATH}/{kept.id}?stream=true"
            answer = Answer(asked_at=world.now)
            connection = connect(world, self.port, self.action.line, self.action.sip)
            connection.send(render("GET", path, None, self.action.headers))
            try:
                await self._read(connection, answer, 0)
            finally:
                connection.close()
            if answer.status == 404:
                self.fail("forgotten", f"{kept.id} is not there")
                return False
            if answer.status == 200 and self.action.fields["stream"]:
                self._note_events(kept, answer.frames)
            elif answer.status == 200 and answer.is_whole and has_ended(answer.json):
                self._note_end(kept, answer.json)
            if kept.body is None:
                await asyncio.sleep(0.5)
        return kept.body["status"] in ("completed", "incomplete")

    def _note_events(self, kept: Kept, frames: list[Any]) -> None:
        for event in frames:
            if event == "[DONE]" or "sequence_number" not in event:
                continue
            number = event["sequence_number"]
            if kept.events and number != max(kept.events) + 1 and number not in kept.events:
                self.fail("events", f"event {number} follows {max(kept.events)}")
            if not kept.events and number:
                self.fail("events", f"event {number} is the first")
            if kept.events.setdefault(number, event) != event and kept.is_strict:
                self.fail("events", f"event {number} was {kept.events[number]}, and is {event}")
            if kept.body is not None:
                self.fail("events", f"event {number} comes after the last")
            if event["type"] in ENDS:
                self._note_end(kept, event["response"])

    def _note_end(self, kept: Kept, body: Any) -> None:
        kept.body = body
        for fault in faults_of_response(kept, body):
            self.fail("response", fault)
        if body.get("usage") and kept.sent is not None:
            self.check_cached(kept.sent, body["usage"])


def has_ended(body: Any) -> bool:
    return body["status"] not in ("queued", "in_progress")


def text_of(body: Any) -> str:
    messages = [item for item in body["output"] if item["type"] == "message"]
    return "".join(part["text"] for item in messages for part in item["content"])


def _streamed_text(kept: Kept) -> str | None:
    """Returns the text of a response's events; None = not all of them are known."""
    if not kept.is_strict or len(kept.events) <= max(kept.events, default=0):
        return None
    events = [event for _, event in sorted(kept.events.items())]
    if events[-1]["type"] not in ENDS:
        return None
    return "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")


def faults_of_response(kept: Kept, body: Any) -> list[str]:
    """Returns what is wrong with a response at its end."""
    said = text_of(body)
    streamed = _streamed_text(kept)
    error = body.get("error")
    # One that nobody can resume has only its whole items.
    is_cut = error is not None and kept.action.loses
    if streamed is not None and streamed != said and not (is_cut and streamed.startswith(said)):
        return [f"its events say {streamed!r}, and it {said!r}"]
    if error is not None and (not kept.background or "not numbers" in error["message"]):
        return []  # nobody resumes what a client waits for, or what the model itself has failed at
    if error is not None and kept.action.loses:
        reasons = ("no longer served", "does not exist", "could not be loaded")
        if any(reason in error["message"] for reason in reasons):
            return []
    if body["status"] == "cancelled" and (kept.action.ends == "cancel" or kept.action.loses):
        # The last character may be whole, or not yet.
        begun = said.removesuffix("\N{REPLACEMENT CHARACTER}")
        if kept.text is None or kept.text.startswith(begun):
            return []
        return [f"it is cancelled with {said!r}, and not of {kept.text!r}"]
    if kept.text is None:
        is_right = error is None and body["status"] in ("completed", "incomplete")
        return [] if is_right else [f"it is {body['status']} ({error})"]
    if (body["status"], said) != (kept.reason, kept.text):
        return [f"it is {body['status']} with {said!r} ({error}), not {kept.reason} {kept.text!r}"]
    return []


async def wait_for_resumption(world: World, port: Port, kept: Kept) -> None:
    """Waits until a response whose end could not be stored has been stored or made again."""
    for _ in range(100):
        path = f"{PATH}/{kept.id}"
        answer = await get(world, port, kept.action.line, path, kept.action.headers)
        if answer.status not in (200, 503) or (answer.status == 200 and has_ended(answer.json)):
            kept.body = None  # its items have other ids
            return
        await asyncio.sleep(1)
    world.fail("hang", f"{kept.id} is not resumed when the disk is in order again")


async def look_as_stranger(
    world: World, port: Port, key: str, paths: list[tuple[str, str]]
) -> None:
    """Checks that the tenant with this key finds nothing at paths of another one."""
    headers = headers_of(key)
    for method, path in paths:
        body = {} if method == "POST" else None
        try:
            answer = await ask(world, port, FAST, render(method, path, body, headers))
        except (Gone, BadAnswer) as error:
            world.fail("lost", f"{method} {path} cannot be asked at the end: {error}")
            continue
        if answer.status != 404:
            world.fail("stranger", f"{method} {path} has status {answer.status} for {key}")


async def look_again(world: World, port: Port, kept: Kept) -> None:
    """Checks that a response is still what it was, and that its events can be had again."""
    for streams in (False, True):
        if streams and not (kept.background and kept.action.fields["stream"]):
            return
        path = f"{PATH}/{kept.id}{'?stream=true' * streams}"
        try:
            answer = await _get_stored(world, port, kept, path)
        except (Gone, BadAnswer) as error:
            world.fail("lost", f"{kept.id} cannot be had at the end: {error}")
            return
        if kept.is_deleted:
            if answer.status != 404:
                world.fail("undead", f"{kept.id} has status {answer.status} after its deletion")
            return
        if answer.status != 200:
            world.fail("forgotten", f"{kept.id} has status {answer.status} at the end")
            return
        if not streams:
            if kept.body is not None and answer.json["output"] != kept.body["output"]:
                world.fail("changed", f"{kept.id} was {kept.body}, and is {answer.json}")
            for fault in faults_of_response(kept, answer.json):
                world.fail("response", f"{kept.id} at the end: {fault}")
            continue
        if answer.frames.pop() != "[DONE]":
            world.fail("events", f"{kept.id} ends without [DONE]")
        numbers = [event["sequence_number"] for event in answer.frames]
        if numbers != list(range(len(numbers))):
            world.fail("events", f"{kept.id} has the events {numbers}")
        for event in answer.frames:
            seen = kept.events.get(event["sequence_number"], event)
            if seen != event and kept.is_strict:
                world.fail("events", f"{kept.id} had {seen}, and has {event}")


async def _get_stored(world: World, port: Port, kept: Kept, path: str) -> Answer:
    """Returns the answer about a response. A replica that could not store its end for some time
    says so until it has looked again."""
    for _ in range(60):
        answer = await get(world, port, FAST, path, kept.action.headers)
        if kept.is_strict or answer.status != 503:
            break
        await asyncio.sleep(1)
    return answer


async def look_at_conversation(
    world: World, port: Port, line: Line, kept: KeptConversation
) -> None:
    """Checks that a conversation has each of its turns once."""
    path = f"/v1/conversations/{kept.id}/items?order=asc&limit=100"
    try:
        answer = await get(world, port, line, path, kept.action.headers)
    except (Gone, BadAnswer) as error:
        world.fail("lost", f"{kept.id} cannot be had at the end: {error}")
        return
    if answer.status != 200:
        world.fail("forgotten", f"{kept.id} has status {answer.status} at the end")
        return
    texts = [part["text"] for item in answer.json["data"] for part in item["content"]]
    texts = [text for text in texts if text != _LATER]
    if not kept.is_strict:  # turns may have been made again, with other texts
        if Counter(kept.texts[::2]) - Counter(texts):
            world.fail("conversation", f"{kept.id} has {texts}, and not all of {kept.texts}")
        return
    num_more = len(texts) - len(kept.texts)
    if texts[: len(kept.texts)] != kept.texts or num_more not in (0, 2 * kept.may_have_more):
        world.fail("conversation", f"{kept.id} has {texts}, not {kept.texts}")
