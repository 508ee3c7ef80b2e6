"""Runs a chat: reads what the user says, asks the server, prints what it answers."""

from __future__ import annotations

import asyncio
import signal
from typing import Final, TextIO

import orjson

from fastovms.client.http_client import HttpClient
from fastovms.client.request_failed import RequestFailed
from fastovms.client.signal_cancellation import cancelled_by
from fastovms.terminal.answer_printer import AnswerPrinter, visible
from fastovms.terminal.dialogue import Dialogue, Message, WrongInput
from fastovms.terminal.line_input import ReadLine, read_text
from fastovms.terminal.slash_commands import Leave, run_command

_PROMPT: Final = ">>> "


class ChatSession:
    """A chat with a server.

    Args:
        runner: its loop runs while the server answers.
        output: gets the answers, and what commands tell.
        errors: gets what has failed, a line each.
        is_terminal, in_colour: see `AnswerPrinter`.
    """

    def __init__(
        self,
        client: HttpClient,
        dialogue: Dialogue,
        runner: asyncio.Runner,
        output: TextIO,
        errors: TextIO,
        *,
        is_terminal: bool,
        in_colour: bool,
    ) -> None:
        self._client = client
        self._dialogue = dialogue
        self._runner = runner
        self._output = output
        self._errors = errors
        self._is_terminal = is_terminal
        self._in_colour = in_colour

    def talk(self, read_line: ReadLine) -> None:
        """Goes on until the user ends it. What fails is told, and the chat goes on."""
        while (text := read_text(read_line, _PROMPT)) is not None:
            if not text:
                continue
            if not text.startswith("/"):
                self._turn({"role": "user", "content": text}, read_line)
                continue
            try:
                told = run_command(self._dialogue, text)
            except WrongInput as error:
                self._complain(str(error))
            except Leave:
                return
            else:
                print(visible(told), file=self._output, flush=True)
        print(file=self._output)  # the shell's prompt goes to a line of its own

    def answer(self, text: str) -> bool:
        """Answers one text, and returns whether that has succeeded."""
        return self._ask({"role": "user", "content": text}) is not None

    def _turn(self, message: Message, read_line: ReadLine) -> None:
        """Answers a message. The results of the calls in an answer are the user's to type."""
        answer = self._ask(message)
        while answer is not None and answer.get("tool_calls"):
            for call in answer["tool_calls"]:
                name = visible(call["function"]["name"])
                result = read_text(read_line, f"result of {name}> ")
                content = {"role": "tool", "tool_call_id": call["id"], "content": result or ""}
                self._dialogue.messages.append(content)
            answer = self._ask(None)

    def _ask(self, message: Message | None) -> Message | None:
        """Prints the answer and keeps it, also one that was stopped. None = it has failed, and the
        message is forgotten."""
        messages = self._dialogue.messages
        before = len(messages)
        if message is not None:
            messages.append(message)
        printer = AnswerPrinter(
            self._output, is_terminal=self._is_terminal, in_colour=self._in_colour
        )
        try:
            was_stopped = self._runner.run(self._stream(printer))
        except KeyboardInterrupt:  # just before it was to cancel the task alone
            was_stopped = True
        except RequestFailed as error:
            printer.finish()
            del messages[before:]
            self._complain(str(error))
            return None
        answer = printer.finish()
        if was_stopped and answer is not None:
            answer.pop("tool_calls", None)  # they may be cut, and nobody has their results
        if answer is None:
            del messages[before:]
            self._complain("stopped" if was_stopped else "the model has said nothing")
            return None
        messages.append(answer)
        return answer

    async def _stream(self, printer: AnswerPrinter) -> bool:
        """Returns whether Ctrl-C has stopped it."""
        task = asyncio.create_task(self._post(printer))
        with cancelled_by(signal.SIGINT, task=task):
            await asyncio.wait([task])
        if not task.cancelled():
            task.result()
        return task.cancelled()

    async def _post(self, printer: AnswerPrinter) -> None:
        path = f"{self._client.target.path}/chat/completions"
        try:
            body = orjson.dumps(self._dialogue.body())
        except TypeError as error:  # JSON has no such text or number, as a lone surrogate is one
            raise RequestFailed("cannot be sent", str(error)) from None
        async with self._client.connection() as connection:
            await connection.exchange("POST", path, body, printer.on_event)

    def _complain(self, text: str) -> None:
        print(f"fastovms: {visible(text)}", file=self._errors, flush=True)
