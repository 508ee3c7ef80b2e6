"""Clients that upload files, run batches over them, and hold the server to every line."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any, Final

import orjson

from tests.simulation.client import FORM, Answer, BadAnswer, Gone, form_of, get
from tests.simulation.encoding import Encoding
from tests.simulation.expected import ActingClient, body_of, faults_of
from tests.simulation.network import FAST
from tests.simulation.server import Port
from tests.simulation.workload import PROMPTS, Action
from tests.simulation.world import World

_PATIENCE: Final = 5000.0
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


class BatchClient(ActingClient):
    """Uploads the lines of an action, runs them as a batch, and checks each result.

    Args:
        may_fail: whether lines may fail with status 500, as where the model computes NaN.
    """

    def __init__(self, *given: Any, may_fail: bool) -> None:
        super().__init__(*given)
        key = self.action.key
        lines = [replace(one, key=key) for one in self.action.lines if one.api in PROMPTS]
        self._sent = {line.number: self.texts.add_prompt(line) for line in lines}
        self._may_fail = may_fail

    async def run(self) -> None:
        action = self.action
        uploaded = await self.call("POST", "/v1/files", _form(action), Content_Type=FORM)
        if uploaded.status != 200:
            self.fail("answer", f"an upload has status {uploaded.status}: {uploaded.body!r}")
            return
        body = {
            "input_file_id": uploaded.json["id"],
            "endpoint": _path(action.lines[0]),
            "completion_window": "24h",
        }
        created = await self.call("POST", "/v1/batches", body)
        if created.status != 200:
            self.fail("answer", f"a batch has status {created.status}: {created.body!r}")
            return
        kept = KeptBatch(created.json["id"], action, uploaded.json["id"])
        self.kept.append(kept)
        self.world.note("acknowledged", kept.id)
        if action.ends:
            await asyncio.sleep(action.after_seconds)
            cancelled = await self.call("POST", f"/v1/batches/{kept.id}/cancel")
            if cancelled.status not in (200, 400):
                self.fail("answer", f"a cancellation has status {cancelled.status}")
        await self._follow(kept)

    async def _follow(self, kept: KeptBatch) -> None:
        """Waits for the end of a batch, and checks its results."""
        ends_at = self.world.now + _PATIENCE
        while self.world.now < ends_at:
            answer = await self.call("GET", f"/v1/batches/{kept.id}")
            if answer.status != 200:
                self.fail("forgotten", f"{kept.id} has status {answer.status}")
                return
            if answer.json["status"] in _ENDS:
                kept.body = answer.json
                break
            await asyncio.sleep(1)
        else:
            self.fail("hang", f"{kept.id} does not end")
            return
        self.world.note("batch", kept.id, kept.body["status"])
        for name in ("output_file_id", "error_file_id"):
            id = kept.body[name]
            if id is not None:
                content = await self.call("GET", f"/v1/files/{id}/content")
                if content.status != 200:
                    self.fail("forgotten", f"{id} of {kept.id} has status {content.status}")
                    return
                kept.outputs[id] = content.body
        for fault in self._faults(kept):
            self.fail("batch", f"{kept.id}: {fault}")

    def _faults(self, kept: KeptBatch) -> list[str]:
        """Returns what is wrong with the results of a batch."""
        status, counts = kept.body["status"], kept.body["request_counts"]
        if status not in (("completed", "cancelled") if self.action.ends else ("completed",)):
            return [f"it is {status}: {kept.body['errors']}"]
        lines = {f"line-{line.number}": line for line in self.action.lines}
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
                faults += Encoding(line, self.settings.encoder, line.model).faults(answer)
            elif not (self._may_fail and answer.status == 500):
                faults += faults_of(line, answer, self.settings)
                if answer.status == 200:
                    self.check_cached(self._sent[line.number], answer.json["usage"])
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
    data = b"\n".join(map(orjson.dumps, lines))
    return form_of({'name="purpose"': b"batch", 'name="file"; filename="lines.jsonl"': data})


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
