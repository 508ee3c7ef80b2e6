"""Clients that upload files, run batches over them, and hold the server to every line."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any, Final

import orjson

from tests.simulation.client import Answer, BadAnswer, Gone, call, get
from tests.simulation.encoding import Encoding
from tests.simulation.expected import SentTexts, body_of, faults_of, num_cached
from tests.simulation.network import FAST
from tests.simulation.server import Port, Settings
from tests.simulation.workload import PROMPTS, Action
from tests.simulation.world import World

_PATIENCE: Final = 5000.0
_BOUNDARY: Final = "simulated"
_ENDS: Final = ("completed", "cancelled", "failed", "expired")


@dataclass
class KeptBatch:
    """A batch that the server has acknowledged.

    Attributes:
        file_id: its input.
        body: the batch as it was at its end; None = no end was seen.
        outputs: the bytes of its result files, by id.
    """

    id: str
    action: Action
    file_id: str
    body: Any = None
    outputs: dict[str, bytes] = field(default_factory=dict)

    @property
    def paths(self) -> list[tuple[str, str]]:
        """The methods and paths that no other tenant may use."""
        files = [f"/v1/files/{id}" for id in (self.file_id, *self.outputs)]
        return [
            ("GET", f"/v1/batches/{self.id}"),
            ("POST", f"/v1/batches/{self.id}/cancel"),
            *(("GET", path) for path in files),
            *(("GET", f"{path}/content") for path in files),
            *(("DELETE", path) for path in files),
        ]


class BatchClient:
    """Uploads the lines of an action, runs them as a batch, and checks each result.

    Args:
        texts: where the prompts of the lines are added.
        may_fail: whether lines may fail with status 500, as where the model computes NaN.
    """

    def __init__(
        self,
        world: World,
        port: Port,
        action: Action,
        settings: Settings,
        kept: list[Any],
        texts: SentTexts,
        *,
        may_fail: bool,
    ) -> None:
        self._texts = texts
        lines = [replace(one, key=action.key) for one in action.lines if one.api in PROMPTS]
        self._sent = {line.number: texts.add_prompt(line) for line in lines}
        self._may_fail = may_fail
        self._world = world
        self._port = port
        self._action = action
        self._settings = settings
        self._kept = kept

    def _fail(self, kind: str, text: str) -> None:
        self._world.fail(kind, f"{self._action}: {text}")

    async def run(self) -> None:
        try:
            await self._run()
        except BadAnswer as error:
            self._fail("answer", str(error))

    async def _run(self) -> None:
        action = self._action
        uploaded = await self._call("POST", "/v1/files", _form(action), is_form=True)
        if uploaded.status != 200:
            self._fail("answer", f"an upload has status {uploaded.status}: {uploaded.body!r}")
            return
        body = {
            "input_file_id": uploaded.json["id"],
            "endpoint": _path(action.lines[0]),
            "completion_window": "24h",
        }
        created = await self._call("POST", "/v1/batches", body)
        if created.status != 200:
            self._fail("answer", f"a batch has status {created.status}: {created.body!r}")
            return
        kept = KeptBatch(created.json["id"], action, uploaded.json["id"])
        self._kept.append(kept)
        self._world.note("acknowledged", kept.id)
        if action.ends:
            await asyncio.sleep(action.after_seconds)
            cancelled = await self._call("POST", f"/v1/batches/{kept.id}/cancel")
            if cancelled.status not in (200, 400):
                self._fail("answer", f"a cancellation has status {cancelled.status}")
        await self._follow(kept)

    async def _call(
        self, method: str, path: str, body: Any = None, *, is_form: bool = False
    ) -> Answer:
        headers = dict(self._action.headers)
        if is_form:
            headers["Content-Type"] = f"multipart/form-data; boundary={_BOUNDARY}"
        return await call(self._world, self._port, self._action.line, method, path, body, headers)

    async def _follow(self, kept: KeptBatch) -> None:
        """Waits for the end of a batch, and checks its results."""
        ends_at = self._world.now + _PATIENCE
        while self._world.now < ends_at:
            answer = await self._call("GET", f"/v1/batches/{kept.id}")
            if answer.status != 200:
                self._fail("forgotten", f"{kept.id} has status {answer.status}")
                return
            if answer.json["status"] in _ENDS:
                kept.body = answer.json
                break
            await asyncio.sleep(1)
        else:
            self._fail("hang", f"{kept.id} does not end")
            return
        self._world.note("batch", kept.id, kept.body["status"])
        for name in ("output_file_id", "error_file_id"):
            id = kept.body[name]
            if id is not None:
                content = await self._call("GET", f"/v1/files/{id}/content")
                if content.status != 200:
                    self._fail("forgotten", f"{id} of {kept.id} has status {content.status}")
                    return
                kept.outputs[id] = content.body
        for fault in self._faults(kept):
            self._fail("batch", f"{kept.id}: {fault}")

    def _faults(self, kept: KeptBatch) -> list[str]:
        """Returns what is wrong with the results of a batch."""
        status, counts = kept.body["status"], kept.body["request_counts"]
        if status not in (("completed", "cancelled") if self._action.ends else ("completed",)):
            return [f"it is {status}: {kept.body['errors']}"]
        lines = {f"line-{line.number}": line for line in self._action.lines}
        results = [
            orjson.loads(line) for data in kept.outputs.values() for line in data.splitlines()
        ]
        names = sorted(result["custom_id"] for result in results)
        is_unread = status == "cancelled" and not names  # it was cancelled before it was checked
        if names != sorted(lines) and not is_unread:
            return [f"the results are {names}"]
        faults = []
        num_right = 0
        for result in results:
            error, response = result["error"], result["response"]
            if error is not None:
                if status != "cancelled" or error["code"] != "batch_cancelled":
                    faults.append(f"{result['custom_id']} has the error {error}")
                continue
            num_right += response["status_code"] == 200
            answer = Answer(response["status_code"], body=orjson.dumps(response["body"]))
            line = lines[result["custom_id"]]
            if line.api.startswith("/"):
                faults += Encoding(line, self._settings.encoder, line.model).faults(answer)
            elif not (self._may_fail and answer.status == 500):
                faults += faults_of(line, answer, self._settings)
                if answer.status == 200:
                    cached = num_cached(answer.json["usage"])
                    own = self._sent[line.number]
                    faults += self._texts.faults_of_cached(self._action.key, own, cached)
        if counts["completed"] != num_right:
            faults.append(f"{counts}, and {num_right} are right")
        return faults


def _path(line: Action) -> str:
    return {"completions": "/v1/completions", "chat": "/v1/chat/completions"}.get(
        line.api, line.api
    )


def _form(action: Action) -> bytes:
    """Returns the body of the upload of an action's lines."""
    lines = [
        {
            "custom_id": f"line-{line.number}",
            "method": "POST",
            "url": _path(line),
            "body": body_of(line),
        }
        for line in action.lines
    ]
    parts = {
        'name="purpose"': b"batch",
        'name="file"; filename="lines.jsonl"': b"\n".join(map(orjson.dumps, lines)),
    }
    data = b""
    for name, content in parts.items():
        head = f"--{_BOUNDARY}\r\nContent-Disposition: form-data; {name}\r\n\r\n"
        data += head.encode() + content + b"\r\n"
    return data + f"--{_BOUNDARY}--\r\n".encode()


async def look_at_batch(world: World, port: Port, kept: KeptBatch) -> None:
    """Checks that a batch and its results are still what they were."""
    if kept.body is None:
        return
    try:
        answer = await get(world, port, FAST, f"/v1/batches/{kept.id}", kept.action.headers)
        if answer.status != 200 or answer.json != kept.body:
            world.fail("changed", f"{kept.id} was {kept.body}, and is {answer.body!r}")
        for id, data in kept.outputs.items():
            path = f"/v1/files/{id}/content"
            answer = await get(world, port, FAST, path, kept.action.headers)
            if answer.status != 200 or answer.body != data:
                world.fail("changed", f"{id} was {data!r}, and is {answer.body!r}")
    except (Gone, BadAnswer) as error:
        world.fail("lost", f"{kept.id} cannot be had at the end: {error}")
