"""Prints an answer as it comes, with thoughts dimmed and calls shown, and keeps it as a message."""

from __future__ import annotations

from typing import Any, Final, TextIO

from fastovms.client.event_stream import DONE
from fastovms.client.stream_event import CallPart, read_event
from fastovms.terminal.dialogue import Message

_DIM: Final = "\x1b[2m"
_PLAIN: Final = "\x1b[0m"

_BIDI_CONTROLS: Final = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_SURROGATES: Final = range(0xD800, 0xE000)
_CONTROLS: Final = {
    code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    for code in (*range(32), *range(127, 160), *_BIDI_CONTROLS, *_SURROGATES)
    if chr(code) not in "\n\t"
}
"""What a terminal obeys, and what turns the direction of writing: shown as escapes, because a model
may have read them from anybody. So are surrogates, which cannot be written at all."""


def visible(text: str) -> str:
    """Returns the text with escapes for what a terminal would obey, or cannot have."""
    return text.translate(_CONTROLS)


class AnswerPrinter:
    """Takes the events of one answer.

    Args:
        output: where the answer goes.
        is_terminal: whether thoughts and calls are shown there; else it gets the content alone.
        in_colour: whether thoughts may be dimmed.
    """

    def __init__(self, output: TextIO, *, is_terminal: bool, in_colour: bool) -> None:
        self._output = output
        self._is_terminal = is_terminal
        self._in_colour = in_colour
        self._content: list[str] = []
        self._calls: dict[int, dict[str, Any]] = {}
        self._is_thinking = False
        self._ends_line = True

    def on_event(self, data: bytes, now: float) -> None:
        """Prints what the event adds.

        Raises:
            RequestFailed: it tells of an error.
        """
        if data == DONE:
            return
        for choice in read_event(data).choices:
            part = choice.delta
            if part is None:
                continue
            if part.thought and self._is_terminal:
                self._think(part.thought)
            for text in filter(None, (part.content, part.refusal)):
                self._end_thought()
                self._content.append(text)
                self._write(text)
            for call in part.tool_calls or ():
                self._end_thought()
                self._call(call)

    def finish(self) -> Message | None:
        """Ends the last line, and returns the answer as a message; None = there was none."""
        self._end_thought()
        if not self._ends_line:
            self._write("\n")
        if not self._content and not self._calls:
            return None
        message: Message = {"role": "assistant", "content": "".join(self._content)}
        if self._calls:
            message["tool_calls"] = [self._calls[index] for index in sorted(self._calls)]
        return message

    def _think(self, text: str) -> None:
        if not self._is_thinking:
            self._is_thinking = True
            if self._in_colour:
                self._output.write(_DIM)
        self._write(text)

    def _end_thought(self) -> None:
        if self._is_thinking:
            self._is_thinking = False
            if self._in_colour:
                self._output.write(_PLAIN)
            self._write("\n" if self._ends_line else "\n\n")

    def _call(self, part: CallPart) -> None:
        call = self._calls.get(part.index)
        if call is None:
            function = {"name": part.function.name or "", "arguments": ""}
            call = {"id": part.id or f"call_{part.index}", "type": "function", "function": function}
            self._calls[part.index] = call
            if self._is_terminal:
                self._write(f"{'' if self._ends_line else chr(10)}-> {function['name']} ")
        arguments = part.function.arguments or ""
        call["function"]["arguments"] += arguments
        if self._is_terminal:
            self._write(arguments)

    def _write(self, text: str) -> None:
        if text:
            self._output.write(visible(text))
            self._output.flush()
            self._ends_line = text.endswith("\n")
