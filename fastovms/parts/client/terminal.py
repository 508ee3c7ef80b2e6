"""`fastovms chat`: a chat in the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import math
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, TextIO

import msgspec
import orjson
import uvloop

from fastovms.errors import ConfigurationError, EngineFailed, FastovmsError, RequestFailed
from fastovms.params import SamplingFields
from fastovms.parts.client.config import TerminalConfig
from fastovms.parts.client.http_client import (
    DONE,
    CallPart,
    HttpClient,
    Target,
    cancelled_by,
    first_model,
    read_event,
)
from fastovms.request_fields import rows_of

_END_TIMEOUT: Final = 10.0
"""Seconds that the server has to stop before it is killed."""

_DIES_WITH_PARENT: Final = "fastovms.backends.dies_with_parent"


@contextmanager
def local_server(model: str | None) -> Iterator[tuple[str, str]]:
    """Starts a server for one model on a free port, and yields its URL and API key once it is
    ready.

    Args:
        model: the model argument of `serve`; None = the demo model.

    Raises:
        EngineFailed: the server ended before it was ready.
    """
    key = secrets.token_hex(16)
    command = [sys.executable, "-m", _DIES_WITH_PARENT, str(os.getpid())]
    command += [sys.executable, "-m", "fastovms", "serve", *([] if model is None else [model])]
    command += ["--host", "127.0.0.1", "--port", "0", "--state-dir", ":memory:"]
    command += ["--log-level", "warning", "--access-log", "off"]
    with tempfile.TemporaryFile("w+", prefix="fastovms-") as log:
        process = subprocess.Popen(
            command,
            env={**os.environ, "API_KEY": key},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            process_group=0,  # Ctrl-C stops the answer, not the server
        )
        try:
            assert process.stdout is not None
            greeting = process.stdout.readline()
            if not greeting:
                raise EngineFailed(f"the server has not started: {_last_line(log)}")
            yield greeting.split()[-1].rstrip(","), key
        finally:
            process.terminate()
            try:
                process.wait(_END_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()


def _last_line(log: IO[str]) -> str:
    log.seek(0)
    lines = log.read().splitlines()
    return lines[-1].removeprefix("fastovms: ") if lines else "it says nothing"


_QUOTES: Final = '"""'
"""The line that begins and ends an input of several lines."""

ReadLine = Callable[[str], str]
"""Shows a prompt and returns a line. Raises EOFError at the end of input, KeyboardInterrupt for
Ctrl-C."""


def terminal_line(prompt: str) -> str:
    """Reads a line from the terminal, with line editing if readline is available."""
    with contextlib.suppress(ImportError):  # without it, `input` still works
        import readline  # noqa: F401  (`input` uses it once it is imported)
    try:
        return input(prompt)
    except KeyboardInterrupt:
        print()  # print the next prompt on a new line
        raise


def read_text(read_line: ReadLine, prompt: str) -> str | None:
    """Reads one line, or several lines between triple quotes; Ctrl-C discards the input. Returns
    None at the end of input."""
    try:
        text = read_line(prompt)
        if not text.startswith(_QUOTES):
            return text.strip()
        lines = [text.removeprefix(_QUOTES)]
        while not lines[-1].endswith(_QUOTES):
            lines.append(read_line("... "))
        lines[-1] = lines[-1].removesuffix(_QUOTES)
        return "\n".join(lines).strip()
    except EOFError:
        return None
    except KeyboardInterrupt:
        return ""


class LeaveChat(Exception):
    """Raised to end the chat at the user's request."""


class SlashCommand(NamedTuple):
    """A slash command of the chat.

    Attributes:
        usage: the command's arguments, for the help.
        run: runs the command with its arguments and returns the text to print; "" = no text.
    """

    usage: str
    help: str
    run: Callable[[Dialogue, str], str]


def run_command(dialogue: Dialogue, line: str) -> str:
    """Runs a slash command and returns the text to print.

    Raises:
        InvalidInput: the command is unknown or has failed.
        LeaveChat: the command ends the chat.
    """
    name, _, rest = line[1:].partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        raise InvalidInput(f"unknown command /{name}: see /help")
    return command.run(dialogue, rest.strip())


def _help(dialogue: Dialogue, rest: str) -> str:
    rows = [
        (f"/{name} {command.usage}".strip(), command.help) for name, command in COMMANDS.items()
    ]
    rows += [('"""', "begins and ends a text of several lines")]
    rows += [("Ctrl-C", "stops the answer"), ("Ctrl-D", "ends the chat")]
    return "\n".join(f"{what:<24}{means}" for what, means in rows)


def _system(dialogue: Dialogue, rest: str) -> str:
    dialogue.system = rest or None
    return f"system: {rest}" if rest else "there is no system message"


def _set(dialogue: Dialogue, rest: str) -> str:
    if rest:
        name, _, value = rest.partition(" ")
        dialogue.set_option(name, value.strip())
    shown = [f"{name} = {value}" for name, value in dialogue.options.items()]
    return "\n".join(shown) or f"all is the server's default; there are {', '.join(OPTIONS)}"


def _model(dialogue: Dialogue, rest: str) -> str:
    dialogue.model = rest or dialogue.model
    return f"model: {dialogue.model}"


def _tools(dialogue: Dialogue, rest: str) -> str:
    try:
        tools = orjson.loads(_read(rest)) if rest else []
    except ValueError:
        tools = None
    if not isinstance(tools, list):
        raise InvalidInput(f"{rest} must have a JSON list of tools, as OpenAI's API takes them")
    dialogue.tools = tools
    return f"{len(tools)} tools"


def _clear(dialogue: Dialogue, rest: str) -> str:
    dialogue.messages.clear()
    return "all messages are forgotten"


def _save(dialogue: Dialogue, rest: str) -> str:
    path = _path(rest)
    try:
        path.write_bytes(dialogue.to_json().encode())
    except (OSError, ValueError) as error:
        raise InvalidInput(f"cannot write {path}: {_reason(error)}") from None
    return f"saved in {path}"


def _load(dialogue: Dialogue, rest: str) -> str:
    dialogue.restore(_read(rest))
    return f"{len(dialogue.messages)} messages"


def _exit(dialogue: Dialogue, rest: str) -> str:
    raise LeaveChat


COMMANDS: Final[Mapping[str, SlashCommand]] = {
    "help": SlashCommand("", "shows this", _help),
    "system": SlashCommand("[TEXT]", "sets the system message, or removes it", _system),
    "set": SlashCommand("[OPTION [VALUE]]", "sets an option, or removes it; shows all", _set),
    "model": SlashCommand("[NAME]", "switches to another model of the server", _model),
    "tools": SlashCommand("[FILE]", "offers the tools of a JSON file, or none", _tools),
    "clear": SlashCommand("", "removes all messages", _clear),
    "save": SlashCommand("FILE", "saves the chat", _save),
    "load": SlashCommand("FILE", "continues a saved chat", _load),
    "exit": SlashCommand("", "ends the chat", _exit),
    "bye": SlashCommand("", "ends the chat", _exit),
}


def _path(rest: str) -> Path:
    if not rest:
        raise InvalidInput("the command needs the name of a file")
    try:
        return Path(rest).expanduser()
    except (RuntimeError, ValueError):
        raise InvalidInput(f"cannot expand {rest}: the home directory is unknown") from None


def _read(rest: str) -> str:
    path = _path(rest)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidInput(f"cannot read {path}: {_reason(error)}") from None


def _reason(error: OSError | ValueError) -> str:
    """Returns an error's reason for the user. A ValueError comes from an invalid file name or
    invalid UTF-8."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


class InvalidInput(FastovmsError):
    """Raised if a typed command is invalid; the dialogue is unchanged."""


def _number(value: str) -> float:
    """Parses a number. Raises ValueError if the text is not a finite number."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError
    return number


def _integer(value: str) -> int:
    """Parses an integer. Raises ValueError if the text is invalid or the integer exceeds the range
    of JSON readers."""
    integer = int(value)
    if not -(2**63) <= integer < 2**64:
        raise ValueError
    return integer


OPTIONS: Final[Mapping[str, Callable[[str], object]]] = {
    **{
        name: _integer if row.is_integer else _number
        for name, row in rows_of(SamplingFields).items()
        if row.field.is_param
    },
    "max_tokens": _integer,
    "reasoning_effort": str,
}
"""Request fields that `/set` can change, with the parser of each value. The server checks the
ranges."""

Message = dict[str, Any]


class _KeptChat(msgspec.Struct):
    """A `Dialogue` as saved by `/save`."""

    system: str | None
    tools: list[Any]
    options: dict[str, Any]
    messages: list[Message]


class Dialogue:
    """The messages of a chat, and the options of its requests.

    Attributes:
        model: the requested model.
        system: the system message; None = no system message.
        tools: the tools that the model may call, in the format of OpenAI's API.
    """

    def __init__(self, model: str, system: str | None = None) -> None:
        self.model = model
        self.system = system
        self.tools: list[Any] = []
        self.options: dict[str, object] = {}
        self.messages: list[Message] = []

    def body(self) -> dict[str, object]:
        """Returns the body of a streaming chat completion request for the next answer."""
        first = [] if self.system is None else [{"role": "system", "content": self.system}]
        return {
            "model": self.model,
            "messages": [*first, *self.messages],
            "stream": True,
            **({"tools": self.tools} if self.tools else {}),
            **self.options,
        }

    def set_option(self, name: str, value: str) -> None:
        """Sets a request option; an empty value removes the option, so that the server's default
        applies.

        Raises:
            InvalidInput: the option is unknown or the value is invalid.
        """
        read = OPTIONS.get(name)
        if read is None:
            raise InvalidInput(f"{name!r} is not an option; options are {', '.join(OPTIONS)}")
        if not value:
            self.options.pop(name, None)
            return
        try:
            self.options[name] = read(value)
        except ValueError:
            kind = "an integer of 64 bits" if read is _integer else "a finite number"
            raise InvalidInput(f"{name} must be {kind}, not {value!r}") from None

    def to_json(self) -> str:
        """Returns the dialogue without the model, as JSON for `restore`."""
        kept = {name: getattr(self, name) for name in _KeptChat.__struct_fields__}
        return json.dumps(kept, indent=2, ensure_ascii=False)

    def restore(self, text: str) -> None:
        """Replaces the dialogue with one saved by `to_json`. Raises InvalidInput if the text is
        invalid."""
        try:
            # msgspec refuses texts that requests cannot have, such as lone surrogates.
            kept = msgspec.json.decode(text, type=_KeptChat)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            raise InvalidInput("the file is not a chat saved with /save") from None
        if not all("role" in message for message in kept.messages):
            raise InvalidInput("the file is not a saved chat")
        self.system, self.tools = kept.system, kept.tools
        self.options, self.messages = kept.options, kept.messages


_DIM: Final = "\x1b[2m"
_PLAIN: Final = "\x1b[0m"

_BIDI_CONTROLS: Final = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_SURROGATES: Final = range(0xD800, 0xE000)
_CONTROLS: Final = {
    code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    for code in (*range(32), *range(127, 160), *_BIDI_CONTROLS, *_SURROGATES)
    if chr(code) not in "\n\t"
}
"""Escapes for characters that control a terminal or change the direction of text, which a model may
have read from any source, and for surrogates, which cannot be encoded."""


def visible(text: str) -> str:
    """Returns the text with terminal control characters and unencodable characters escaped."""
    return text.translate(_CONTROLS)


class AnswerPrinter:
    """Prints the events of one answer.

    Args:
        output: the stream for the answer.
        is_terminal: whether the output is a terminal, which also gets reasoning and tool calls;
            otherwise only content is written.
        in_colour: whether reasoning may be dimmed.
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
        """Prints the new content of a stream event.

        Raises:
            RequestFailed: the event is an error.
        """
        if data == DONE:
            return
        for choice in read_event(data).choices:
            part = choice.delta
            if part is None:
                continue
            if part.reasoning_text and self._is_terminal:
                if not self._is_thinking and self._in_colour:
                    self._output.write(_DIM)
                self._is_thinking = True
                self._write(part.reasoning_text)
            for text in filter(None, (part.content, part.refusal)):
                self._end_reasoning()
                self._content.append(text)
                self._write(text)
            for call in part.tool_calls or ():
                self._end_reasoning()
                self._call(call)

    def finish(self) -> Message | None:
        """Ends the last line, and returns the answer as an assistant message; None = the answer is
        empty."""
        self._end_reasoning()
        if not self._ends_line:
            self._write("\n")
        if not self._content and not self._calls:
            return None
        message: Message = {"role": "assistant", "content": "".join(self._content)}
        if self._calls:
            message["tool_calls"] = [self._calls[index] for index in sorted(self._calls)]
        return message

    def _end_reasoning(self) -> None:
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


_PROMPT: Final = ">>> "


@dataclass(frozen=True, slots=True)
class ChatSession:
    """A chat with a server.

    Attributes:
        runner: runs the event loop while the server answers.
        output: the stream for answers and command output.
        errors: the stream for error messages, one per line.
        is_terminal, in_colour: see `AnswerPrinter`.
    """

    client: HttpClient
    dialogue: Dialogue
    runner: asyncio.Runner
    output: TextIO
    errors: TextIO
    is_terminal: bool
    in_colour: bool

    def run_chat(self, read_line: ReadLine) -> None:
        """Runs the chat until the user ends it. An error is printed, and the chat continues."""
        while (text := read_text(read_line, _PROMPT)) is not None:
            if not text:
                continue
            if not text.startswith("/"):
                self._turn({"role": "user", "content": text}, read_line)
                continue
            try:
                output = run_command(self.dialogue, text)
            except InvalidInput as error:
                self._complain(str(error))
            except LeaveChat:
                return
            else:
                print(visible(output), file=self.output, flush=True)
        print(file=self.output)  # let the shell print its prompt on a new line

    def answer(self, text: str) -> bool:
        """Sends one message and prints the answer. Returns False if the request failed."""
        return self._ask({"role": "user", "content": text}) is not None

    def _turn(self, message: Message, read_line: ReadLine) -> None:
        """Sends a message and prints the answer. If the answer calls tools, the user types their
        results."""
        answer = self._ask(message)
        while answer is not None and answer.get("tool_calls"):
            for call in answer["tool_calls"]:
                name = visible(call["function"]["name"])
                result = read_text(read_line, f"result of {name}> ")
                content = {"role": "tool", "tool_call_id": call["id"], "content": result or ""}
                self.dialogue.messages.append(content)
            answer = self._ask(None)

    def _ask(self, message: Message | None) -> Message | None:
        """Sends a message, prints the answer and adds it to the dialogue, even if Ctrl-C
        interrupted it. Returns None if the request failed; the message is then removed."""
        messages = self.dialogue.messages
        before = len(messages)
        if message is not None:
            messages.append(message)
        printer = AnswerPrinter(self.output, is_terminal=self.is_terminal, in_colour=self.in_colour)
        try:
            was_stopped = self.runner.run(self._stream(printer))
        except KeyboardInterrupt:  # raised before the runner's own handler was installed
            was_stopped = True
        except RequestFailed as error:
            printer.finish()
            del messages[before:]
            self._complain(str(error))
            return None
        answer = printer.finish()
        if was_stopped and answer is not None:
            answer.pop("tool_calls", None)  # tool calls may be incomplete, and have no results
        if answer is None:
            del messages[before:]
            self._complain("stopped" if was_stopped else "the answer is empty")
            return None
        messages.append(answer)
        return answer

    async def _stream(self, printer: AnswerPrinter) -> bool:
        """Prints the streamed answer. Returns True if Ctrl-C interrupted it."""
        task = asyncio.create_task(self._post(printer))
        with cancelled_by(signal.SIGINT, task=task):
            await asyncio.wait([task])
        if not task.cancelled():
            task.result()
        return task.cancelled()

    async def _post(self, printer: AnswerPrinter) -> None:
        path = f"{self.client.target.path}/chat/completions"
        try:
            body = orjson.dumps(self.dialogue.body())
        except TypeError as error:
            # The body has a value that JSON does not have, such as a lone surrogate.
            raise RequestFailed("cannot be sent", str(error)) from None
        async with self.client.connection() as connection:
            await connection.exchange("POST", path, body, printer.on_event)

    def _complain(self, text: str) -> None:
        print(f"fastovms: {visible(text)}", file=self.errors, flush=True)


_FAILED = 1


def chat(place: str | None, config: TerminalConfig, *, in_colour: bool) -> int:
    """Runs a chat until the user ends it, and returns the exit code. Piped input is sent as one
    message, and only the answer is printed.

    Args:
        place: the URL of a server, or a model to start a server for; None = the demo model.

    Raises:
        ConfigurationError: the URL is invalid, or the piped input is empty.
        EngineFailed: the server did not start.
        RequestFailed: the server does not answer the request for its models.
    """
    if isinstance(sys.stdin, io.TextIOWrapper):
        # Accept bytes of other encodings, for instance in a diff of old files.
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")
    is_typed = sys.stdin.isatty()
    is_terminal = sys.stdout.isatty()
    text = "" if is_typed else sys.stdin.read().strip()
    if not is_typed and not text:
        raise ConfigurationError("standard input is empty")
    with ExitStack() as stack:
        key = config.api_key
        if place is not None and "://" in place:
            target = Target.from_url(place)
        else:
            if is_terminal:
                print(f"starting a server of {place or 'the demo model'} ...", file=sys.stderr)
            url, key = stack.enter_context(local_server(place))
            target = Target.from_url(url)
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        client = HttpClient(target, headers=headers, verify=not config.insecure)
        stack.callback(lambda: runner.run(client.close()))
        model = config.model or runner.run(first_model(client))
        session = ChatSession(
            client,
            Dialogue(model, config.system),
            runner,
            sys.stdout,
            sys.stderr,
            is_terminal=is_terminal,
            in_colour=in_colour,
        )
        if not is_typed:
            return 0 if session.answer(text) else _FAILED
        if is_terminal:
            print(f"{model}: /help shows the commands, Ctrl-D ends the chat", file=sys.stderr)
        # While a line is typed, Ctrl-C drops the line.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        stack.callback(signal.signal, signal.SIGINT, before)
        session.run_chat(terminal_line)
    return 0
