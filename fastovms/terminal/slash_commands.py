"""Does what lines with a slash before them ask for, such as `/system Be brief.`"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import orjson

from fastovms.terminal.dialogue import OPTIONS, Dialogue, WrongInput


class Leave(Exception):
    """The user wants to end the chat."""


class SlashCommand(NamedTuple):
    """What one of them does.

    Attributes:
        usage: what follows its name.
        run: does it, given what follows, and returns what to tell; "" = nothing.
    """

    usage: str
    help: str
    run: Callable[[Dialogue, str], str]


def run_command(dialogue: Dialogue, line: str) -> str:
    """Runs a line that begins with a slash, and returns what to tell of it.

    Raises:
        WrongInput: there is no such command, or it cannot be done.
        Leave: the chat is to end.
    """
    name, _, rest = line[1:].partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        raise WrongInput(f"there is no command /{name}: see /help")
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
        raise WrongInput(f"{rest} must have a JSON list of tools, as OpenAI's API takes them")
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
        raise WrongInput(f"cannot write {path}: {_reason(error)}") from None
    return f"saved in {path}"


def _load(dialogue: Dialogue, rest: str) -> str:
    dialogue.restore(_read(rest))
    return f"{len(dialogue.messages)} messages"


def _exit(dialogue: Dialogue, rest: str) -> str:
    raise Leave


COMMANDS: Final[Mapping[str, SlashCommand]] = {
    "help": SlashCommand("", "shows this", _help),
    "system": SlashCommand("[TEXT]", "sets the system message, or removes it", _system),
    "set": SlashCommand("[OPTION [VALUE]]", "sets an option, or removes it; shows all", _set),
    "model": SlashCommand("[NAME]", "asks another model of the server", _model),
    "tools": SlashCommand("[FILE]", "offers the tools of a JSON file, or none", _tools),
    "clear": SlashCommand("", "forgets all messages", _clear),
    "save": SlashCommand("FILE", "keeps the chat", _save),
    "load": SlashCommand("FILE", "goes on with a chat that was kept", _load),
    "exit": SlashCommand("", "ends the chat", _exit),
    "bye": SlashCommand("", "ends it, too", _exit),
}


def _path(rest: str) -> Path:
    if not rest:
        raise WrongInput("it needs the name of a file")
    try:
        return Path(rest).expanduser()
    except (RuntimeError, ValueError):
        raise WrongInput(f"there is no home directory for {rest}") from None


def _read(rest: str) -> str:
    path = _path(rest)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise WrongInput(f"cannot read {path}: {_reason(error)}") from None


def _reason(error: OSError | ValueError) -> str:
    """Says why a file cannot be had; ValueError is of names and texts that files cannot have."""
    if isinstance(error, UnicodeDecodeError):
        return "it is no UTF-8"
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
