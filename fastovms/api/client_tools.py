"""Tools that clients run and that a vendor's API defines by their type alone, such as shell, patch
and computer tools. The model calls each as a function; the client gets the vendor's items or
blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from fastovms.api.body import one_of, typed, wrong
from fastovms.api.chat_tools import OfferedTool, ToolTarget, read_function
from fastovms.errors import InvalidField
from fastovms.grammar.finite_schema import Schema
from fastovms.json_types import json_type
from fastovms.text.parameters import Tool


def _object(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }


def _string(description: str = "", *values: str) -> Schema:
    schema: dict[str, Any] = {"type": "string", **({"enum": list(values)} if values else {})}
    return {**schema, "description": description} if description else schema


def _integer(description: str = "") -> Schema:
    return {"type": "integer", **({"description": description} if description else {})}


def _list(items: Schema, description: str = "", **bounds: int) -> Schema:
    described = {"description": description} if description else {}
    return {"type": "array", "items": items, **bounds, **described}


def _numbers(description: str, length: int) -> Schema:
    return _list(_integer(), description, minItems=length, maxItems=length)


def _one_of(**options: Schema) -> Schema:
    """Returns the schema of a union of objects, discriminated by `type`."""
    return {
        "anyOf": [
            {
                **option,
                "properties": {"type": _string("", kind), **option["properties"]},
                "required": ["type", *option["required"]],
            }
            for kind, option in options.items()
        ]
    }


_WORDS: Final = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "an integer",
    "object": "an object",
    "string": "a string",
}


def _check(value: Any, schema: Schema, place: str) -> None:
    """Checks a value against a schema of this module. Optional fields may be null, and unknown
    fields are allowed. Raises InvalidField if the value does not match."""
    if "anyOf" in schema:
        options = {option["properties"]["type"]["enum"][0]: option for option in schema["anyOf"]}
        value = typed(value, dict, place)
        schema = options[one_of(value.get("type"), options, f"{place}.type")]
    if json_type(value) != schema["type"]:
        raise wrong(place, _WORDS[schema["type"]], value)
    if "enum" in schema:
        one_of(value, schema["enum"], place)
    if "items" in schema:
        for position, element in enumerate(value):
            _check(element, schema["items"], f"{place}[{position}]")
    for name, inner in schema.get("properties", {}).items():
        if name in schema["required"] or value.get(name) is not None:
            _check(value.get(name), inner, f"{place}.{name}")


class ClientTool(NamedTuple):
    """A type of tool in OpenAI's API.

    Attributes:
        function: the name of the function that the model calls.
        description, parameters: the description of the function in the prompt.
        call, output: the item types of a call and of its result.
        prefix: the prefix of call ids; results' ids have another "o" after it.
        member: the item's field with the arguments; "" = the item itself has them.
        item: the schema of a call's item.
        result: the schema of a result's item.
        fixed: fields in addition to the arguments, unless the arguments contain them.
        others: further fields of the item.
    """

    function: str
    description: str
    parameters: Schema
    call: str
    output: str
    prefix: str
    member: str
    item: Schema
    result: Schema
    fixed: Mapping[str, Any] = {}
    others: Mapping[str, Any] = {}

    def members(self, arguments: str) -> dict[str, Any] | None:
        """Returns the fields of a call's item, given the arguments that the model wrote; None = the
        arguments are malformed."""
        try:
            written = orjson.loads(arguments or "{}")
            _check(written, {"type": "object"}, "")
            if names := self.parameters.get("properties"):
                written = {name: written[name] for name in written if name in names}
            if self.call == "apply_patch_call" and written.get("type") == "delete_file":
                written.pop("diff", None)
            members = {**written, **self.fixed, **written}  # keep the model's order of fields
            item = {self.member: members} if self.member else members
            _check(item, self.item, "")
        except (orjson.JSONDecodeError, InvalidField):
            return None
        return {**item, **self.others}

    def events(self, item: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, object]]]:
        """Yields the events about the parts of a call: their types without "response.", and their
        fields."""
        if self.call == "shell_call":
            for index, command in enumerate(item["action"]["commands"]):
                place = {"command_index": index}
                yield "shell_call_command.added", {**place, "command": ""}
                yield "shell_call_command.delta", {**place, "delta": command}
                yield "shell_call_command.done", {**place, "command": command}
        elif self.call == "apply_patch_call" and (diff := item["operation"].get("diff")):
            place = {"item_id": item["id"]}
            yield "apply_patch_call_operation_diff.delta", {**place, "delta": diff}
            yield "apply_patch_call_operation_diff.done", {**place, "diff": diff}

    def arguments(self, item: Mapping[str, Any]) -> Any:
        """Returns the arguments of a call as the model wrote them."""
        if self.call == "computer_call":
            return {name: item[name] for name in ("action", "actions") if item.get(name)}
        given = item.get(self.member) or {}
        if not isinstance(given, Mapping):
            return given
        return {
            name: value
            for name, value in given.items()
            if value is not None and (name not in self.fixed or value != self.fixed[name])
        }


_TIMEOUT: Final = _integer("Maximum time in milliseconds that the commands may run")
_SHELL: Final = _object(
    {"commands": _list(_string(), "Shell commands, which run in this order", minItems=1)},
    {
        "timeout_ms": _TIMEOUT,
        "max_output_length": _integer("Maximum number of characters of the output to return"),
    },
)
_LOCAL_SHELL: Final = _object(
    {"command": _list(_string(), 'The program and its arguments: ["ls", "-l"]', minItems=1)},
    {
        "env": {
            "type": "object",
            "properties": {},
            "required": [],
            "additionalProperties": _string(),
            "description": "Environment variables of the command",
        },
        "timeout_ms": _TIMEOUT,
        "user": _string("The user that runs the command"),
        "working_directory": _string("The directory in which the command runs"),
    },
)
_PATH: Final = _string("The path of the file")
_DIFF: Final = _string(
    "create_file: the content, each line after a +. update_file: sections, each of which begins "
    "with a line @@ and has lines of context after a space, removed lines after a - and added "
    "lines after a +. delete_file: empty"
)
_PATCH_KINDS: Final = ("create_file", "update_file", "delete_file")
_KEYS: Final = {"keys": _list(_string(), "Keys that are held meanwhile")}
_POINT: Final = {"x": _integer(), "y": _integer()}
_ACTION: Final = _one_of(
    click=_object(
        {"button": _string("", "left", "right", "wheel", "back", "forward"), **_POINT}, _KEYS
    ),
    double_click=_object(_POINT, _KEYS),
    drag=_object({"path": _list(_object(_POINT))}, _KEYS),
    keypress=_object({"keys": _list(_string())}),
    move=_object(_POINT, _KEYS),
    screenshot=_object({}),
    scroll=_object({**_POINT, "scroll_x": _integer(), "scroll_y": _integer()}, _KEYS),
    type=_object({"text": _string()}),
    wait=_object({}),
)
_ACTIONS: Final = _list(_ACTION, "Actions, which are carried out in this order", minItems=1)
_SCREENSHOT: Final = _object(
    {
        "output": _object(
            {"type": _string("", "computer_screenshot", "input_image")},
            {"image_url": _string(), "file_id": _string()},
        )
    }
)
_OUTCOME: Final = _one_of(exit=_object({}, {"exit_code": _integer()}), timeout=_object({}))
_COMPUTER: Final = "Controls a computer with a screen, a mouse and a keyboard. Returns a screenshot"

CLIENT_TOOLS: Final[Mapping[str, ClientTool]] = {
    "shell": ClientTool(
        "shell",
        "Runs shell commands on the user's machine and returns their output",
        _SHELL,
        *("shell_call", "shell_call_output", "sh", "action"),
        item=_object({"action": _SHELL}),
        result=_object(
            {
                "output": _list(
                    _object({}, {"stdout": _string(), "stderr": _string(), "outcome": _OUTCOME})
                )
            }
        ),
        fixed={"timeout_ms": None, "max_output_length": None},
        others={"environment": {"type": "local"}},
    ),
    "local_shell": ClientTool(
        "local_shell",
        "Runs a command on the user's machine, without a shell, and returns its output",
        _LOCAL_SHELL,
        *("local_shell_call", "local_shell_call_output", "lsh", "action"),
        item=_object({"action": _LOCAL_SHELL}),
        result=_object({"output": _string()}),
        fixed={
            "type": "exec",
            "env": {},
            "timeout_ms": None,
            "user": None,
            "working_directory": None,
        },
    ),
    "apply_patch": ClientTool(
        "apply_patch",
        "Creates, updates or deletes a file of the user by a patch",
        _object({"type": _string("", *_PATCH_KINDS), "path": _PATH, "diff": _DIFF}),
        *("apply_patch_call", "apply_patch_call_output", "apc", "operation"),
        item=_object(
            {
                "operation": _one_of(
                    create_file=_object({"path": _PATH, "diff": _DIFF}),
                    update_file=_object({"path": _PATH, "diff": _DIFF}),
                    delete_file=_object({"path": _PATH}),
                )
            }
        ),
        result=_object({"status": _string("", "completed", "failed")}, {"output": _string()}),
    ),
    "computer": ClientTool(
        "computer",
        _COMPUTER,
        _object({"actions": _ACTIONS}),
        *("computer_call", "computer_call_output", "cu", ""),
        item=_object({"actions": _ACTIONS}),
        result=_SCREENSHOT,
        others={"pending_safety_checks": []},
    ),
    "computer_use_preview": ClientTool(
        "computer",
        _COMPUTER,
        _object({"action": _ACTION}),
        *("computer_call", "computer_call_output", "cu", ""),
        item=_object({"action": _ACTION}),
        result=_SCREENSHOT,
        others={"pending_safety_checks": []},
    ),
    "tool_search": ClientTool(
        "tool_search",
        "Finds further tools",
        {"type": "object"},
        *("tool_search_call", "tool_search_output", "tsc", "arguments"),
        item={"type": "object"},
        result={"type": "object"},
        others={"execution": "client"},
    ),
}
"""The tools of OpenAI's API that clients run, by type."""

CALLED: Final = {tool.call: tool for tool in CLIENT_TOOLS.values()}
ANSWERED: Final = {tool.output: tool for tool in CLIENT_TOOLS.values()}
"""The tools by the item types of their calls and results."""

_ENVIRONMENTS: Final = ("local", "container_auto", "container_reference")
_SKILLS: Final = _list(_object(dict.fromkeys(("name", "description", "path"), _string())))


def check_item(item: Mapping[str, Any], place: str) -> None:
    """Checks a call's or result's item. Raises InvalidField if a field is missing or of a wrong
    type."""
    kind = item["type"]
    if kind == "computer_call":
        is_single = item.get("actions") is None and item.get("action") is not None
        _check(item, CLIENT_TOOLS["computer_use_preview" if is_single else "computer"].item, place)
    else:
        _check(item, CALLED[kind].item if kind in CALLED else ANSWERED[kind].result, place)
    if kind == "computer_call_output":
        screenshot = item["output"]
        if screenshot.get("image_url") is None and screenshot.get("file_id") is None:
            raise wrong(f"{place}.output.image_url", "a string", None)


def openai_tool(tool: Mapping[str, Any], place: str) -> Sequence[OfferedTool]:
    """Returns the function that represents a tool of one of OpenAI's types; empty if the server
    would have to run the tool. Raises InvalidField if the tool is malformed."""
    kind = tool.get("type")
    found = CLIENT_TOOLS.get(kind) if isinstance(kind, str) else None
    if found is None:
        return ()
    description, parameters = [found.description], found.parameters
    if kind == "shell" and tool.get("environment") is not None:
        environment, name = tool["environment"], f"{place}.environment"
        _check(environment, _object({"type": _string("", *_ENVIRONMENTS)}), name)
        if environment["type"] != "local":
            return ()
        if skills := environment.get("skills"):
            _check(skills, _SKILLS, f"{name}.skills")
            description.append("Skills, which are described in files below their paths:")
            for skill in skills:
                description.append(f"{skill['name']} ({skill['path']}): {skill['description']}")
    elif kind == "computer_use_preview":
        size = {"display_width": _integer(), "display_height": _integer()}
        _check(tool, _object(size, {"environment": _string()}), place)
        screen = f"{tool['display_width']} x {tool['display_height']} pixels"
        description.append(f"Screen: {screen}. System: {tool.get('environment') or 'unknown'}")
    elif kind == "tool_search":
        if tool.get("execution") != "client":
            return ()
        given = {key: value for key, value in tool.items() if value is not None}
        read = read_function({**given, "name": found.function}, place)
        parameters = read.tool.parameters or parameters
        description = [given.get("description", found.description)]
    return [_offered(ToolTarget(found.function, kind=str(kind)), description, parameters)]


def _offered(target: ToolTarget, description: Sequence[str], parameters: Schema) -> OfferedTool:
    name = target.function
    shown = {"name": name, "description": "\n".join(description), "parameters": parameters}
    return OfferedTool(Tool(name, parameters), shown, target)


class _Family(NamedTuple):
    """Anthropic's tools of one type, whose versions differ in the date at the end.

    Calls are blocks of the type `tool_use`, so only the schemas differ.

    Attributes:
        name: the usual name of the tool.
        properties: the schemas of the inputs. The first is required, and `more` others.
    """

    name: str
    description: str
    properties: Mapping[str, Schema]
    more: int = 0


_COMMANDS: Final = (
    "view shows a file, or what a directory has. create writes a file with file_text. str_replace "
    "replaces old_str, which occurs once, by new_str. insert puts insert_text after insert_line."
)
_RANGE: Final = _numbers("First and last line to view; -1 = to the end", 2)
_EDITS: Final = {
    "path": _string("Absolute path of the file or directory"),
    "file_text": _string("Content of the file to create"),
    "old_str": _string("Text to replace"),
    "new_str": _string("Text that replaces old_str"),
    "insert_line": _integer("Line after which the text is inserted; 0 = before the first"),
    "insert_text": _string("Text to insert"),
    "view_range": _RANGE,
}
_EDIT_COMMANDS: Final = ("view", "create", "str_replace", "insert")
_FAMILIES: Final[Mapping[str, _Family]] = {
    "bash": _Family(
        "bash",
        "Runs a command in a bash session that stays open, and returns its output",
        {
            "command": _string("The command to run"),
            "restart": {"type": "boolean", "description": "true restarts the session"},
        },
    ),
    "text_editor": _Family(
        "str_replace_based_edit_tool",
        f"Views and edits files. {_COMMANDS}",
        {"command": _string("", *_EDIT_COMMANDS), **_EDITS},
        more=1,
    ),
    "memory": _Family(
        "memory",
        "Keeps notes in files below /memories from one conversation to the next. View /memories "
        f"before anything else. {_COMMANDS} delete removes path, rename moves old_path to "
        "new_path.",
        {
            "command": _string("", *_EDIT_COMMANDS, "delete", "rename"),
            **_EDITS,
            "old_path": _string("Path to rename"),
            "new_path": _string("Path after renaming"),
        },
    ),
}
_XY: Final = "(x, y): pixels from the left edge and from the top edge"
_INPUTS: Final[Mapping[str, Schema]] = {
    "coordinate": _numbers(_XY, 2),
    "start_coordinate": _numbers(_XY, 2),
    "text": _string("Text to type, or keys to press or to hold, such as ctrl+s"),
    "duration": _integer("Seconds"),
    "scroll_direction": _string("", "up", "down", "left", "right"),
    "scroll_amount": _integer("Number of clicks of the scroll wheel"),
    "region": _numbers("(x0, y0, x1, y1): the region to capture", 4),
    "repeat": _integer("Number of times to press the keys"),
}
_CLICK: Final = ((), ("coordinate", "text"))
_MEMBERS: Final[Mapping[str, tuple[str, Sequence[str], Sequence[str]]]] = {
    "key": ("Press a key or a combination of keys", ("text",), ("repeat",)),
    "type": ("Type a text", ("text",), ()),
    "mouse_move": ("Move the cursor", ("coordinate",), ()),
    "left_click": ("Click the left button", *_CLICK),
    "left_click_drag": (
        "Drag from start_coordinate to coordinate",
        ("start_coordinate", "coordinate"),
        ("text",),
    ),
    "right_click": ("Click the right button", *_CLICK),
    "middle_click": ("Click the middle button", *_CLICK),
    "double_click": ("Double-click the left button", *_CLICK),
    "screenshot": ("Take a screenshot", (), ()),
    "cursor_position": ("Get the position of the cursor", (), ()),
    "left_mouse_down": ("Press and hold the left button", (), ()),
    "left_mouse_up": ("Release the left button", (), ()),
    "scroll": ("Scroll", ("scroll_direction", "scroll_amount"), _CLICK[1]),
    "hold_key": ("Hold keys for a time", ("text", "duration"), ()),
    "wait": ("Wait", ("duration",), ()),
    "triple_click": ("Triple-click the left button", *_CLICK),
    "zoom": ("Take a screenshot of a region, scaled up", ("region",), ()),
}
"""The actions of a computer: the description, the required and the optional inputs of each."""

_TARGETS: Final = {
    "coordinate": _object({"x": _integer(), "y": _integer()}),
    "ref": _object({"ref": _string("A reference of read_page or find, such as ref_7")}),
}
_PAGE: Final[Mapping[str, Schema]] = {
    **_INPUTS,
    "target": _one_of(**_TARGETS),
    "point": _one_of(coordinate=_TARGETS["coordinate"]),
    "element": _one_of(ref=_TARGETS["ref"]),
    "from": _one_of(coordinate=_TARGETS["coordinate"]),
    "modifiers": _string("Keys to hold, such as ctrl+shift"),
    "duration": {"type": "number", "description": "Seconds"},
    "tab_id": _string("The tab; the active one if omitted"),
    "url": _string("An address, or back, forward or reload"),
    "ref": _string("Root of the part to read"),
    "filter": _string("", "interactive", "all"),
    "depth": _integer("Maximum depth of the tree"),
    "query": _string("What to find, in words"),
    "value": {"type": ["string", "number", "boolean"]},
    "paths": _list(_string(), "Paths of files"),
    "document_ids": _list(_string(), "Files that are staged"),
}
"""Inputs of browser tools. "point" and "element" are kinds of "target"."""

_KINDS: Final = {"point": "target", "element": "target"}
_TAB: Final = ("tab_id",)
_TARGET: Final = (("target",), ("modifiers", *_TAB))
_BROWSER_MEMBERS: Final[Mapping[str, tuple[str, Sequence[str], Sequence[str]]]] = {
    "navigate": ("Go to an address, or in the history", ("url",), _TAB),
    "list_tabs": ("List the open tabs", (), ()),
    "new_tab": ("Open an empty tab", (), ()),
    "switch_tab": ("Make a tab the active one", _TAB, ()),
    "close_tab": ("Close a tab", _TAB, ()),
    "read_page": ("Get the accessibility tree", (), ("ref", "filter", "depth", *_TAB)),
    "get_page_text": ("Get the visible text", (), _TAB),
    "read_console": ("Get new output of the console", (), _TAB),
    "read_network": ("Get new network requests", (), _TAB),
    "find": ("Find elements by a description", ("query",), _TAB),
    "form_input": ("Set the value of an element", ("element", "value"), _TAB),
    "file_upload": ("Set the files of an element", ("element",), ("paths", "document_ids", *_TAB)),
    "scroll_to": ("Scroll an element into view", ("element",), _TAB),
    "screenshot": ("Take a screenshot", (), _TAB),
    "zoom": ("Take a screenshot of a region, scaled up", ("region",), _TAB),
    "left_click": ("Click the left button", *_TARGET),
    "right_click": ("Click the right button", *_TARGET),
    "middle_click": ("Click the middle button", *_TARGET),
    "double_click": ("Double-click the left button", *_TARGET),
    "triple_click": ("Triple-click the left button", *_TARGET),
    "hover": ("Move to a place without a click", ("target",), _TAB),
    "left_click_drag": ("Drag from a point to another", ("from", "point"), _TAB),
    "left_mouse_down": ("Press and hold the left button", ("point",), _TAB),
    "left_mouse_up": ("Release the left button", ("point",), _TAB),
    "mouse_move": ("Move the pointer", ("point",), _TAB),
    "scroll": ("Scroll at a point", ("point", "scroll_direction"), ("scroll_amount", *_TAB)),
    "type": ("Type a text", ("text",), _TAB),
    "key": ("Press a key or a combination of keys", ("text",), ("repeat", *_TAB)),
    "hold_key": ("Hold keys for a time", ("text", "duration"), _TAB),
    "wait": ("Wait", ("duration",), _TAB),
    "javascript_exec": ("Evaluate JavaScript in the page", ("text",), _TAB),
}
_TOOLSETS: Final = {
    "computer": (_MEMBERS, _INPUTS, frozenset[str]()),
    "browser": (
        _BROWSER_MEMBERS,
        _PAGE,
        frozenset(("file_upload", "read_console", "read_network", "javascript_exec")),
    ),
}
"""Members and inputs of toolsets, and the members that are only offered when enabled."""

_FIRST_MEMBERS: Final = 10
"""The number of actions of the 2024 version of the tool."""

_DATED: Final = re.compile(
    r"(bash|text_editor|memory|computer|(?:computer|browser)_toolset)_(\d{8})"
)


def anthropic_tool(tool: Mapping[str, Any], place: str) -> Sequence[OfferedTool]:
    """Returns the functions that represent a tool of one of Anthropic's types; empty if the server
    would have to run the tool. Raises InvalidField if the tool is malformed."""
    found = _DATED.fullmatch(tool["type"])
    if found is None:
        return ()
    kind, date = found.groups()
    if kind.endswith("_toolset"):
        return _toolset(tool, kind.partition("_")[0], place)
    if kind == "computer":
        name, description, properties, more = _computer(tool, date, place)
    else:
        name, description, properties, more = _FAMILIES[kind]
    if kind == "text_editor" and date < "20250728":
        properties = {key: properties[key] for key in properties if key != "insert_text"}
        description = description.replace("insert_text", "new_str")
    if kind == "text_editor" and date < "20250429":
        name = "str_replace_editor"
        properties = {**properties, "command": _string("", *_EDIT_COMMANDS, "undo_edit")}
    required = dict([*properties.items()][: 1 + more])
    function = {
        "name": tool.get("name", name),
        "description": description,
        "parameters": _object(required, properties),
        **{key: tool[key] for key in ("strict",) if tool.get(key) is not None},
    }
    return [read_function(function, place)]


def _computer(tool: Mapping[str, Any], date: str, place: str) -> _Family:
    size = {"display_width_px": _integer(), "display_height_px": _integer()}
    _check(tool, _object(size), place)
    members = dict([*_MEMBERS.items()][: _FIRST_MEMBERS if date < "2025" else None])
    if not tool.get("enable_zoom"):
        members.pop("zoom", None)
    actions = [
        f"{name}: {' '.join((purpose, *_needed(needs)))}"
        for name, (purpose, needs, _) in members.items()
    ]
    used = {name for _, *inputs in members.values() for names in inputs for name in names}
    properties = {name: schema for name, schema in _INPUTS.items() if name in used}
    return _Family(
        "computer",
        f"{_COMPUTER}. Screen: {tool['display_width_px']} x {tool['display_height_px']} pixels. "
        f"Actions:\n" + "\n".join(actions),
        {"action": _string("", *members), **properties},
    )


def _needed(inputs: Sequence[str]) -> Sequence[str]:
    return [f"({', '.join(inputs)})"] if inputs else ()


def _toolset(tool: Mapping[str, Any], family: str, place: str) -> Sequence[OfferedTool]:
    """Returns a function for each enabled tool of a toolset."""
    members, inputs, disabled = _TOOLSETS[family]
    configs, name = tool.get("configs") or {}, f"{place}.configs"
    _check(configs, {"type": "object"}, name)
    enabled = {member: member not in disabled for member in members}
    for member, config in configs.items():
        one_of(member, members, name)
        _check(config or {}, _object({}, {"enabled": {"type": "boolean"}}), f"{name}.{member}")
        if (config or {}).get("enabled") is not None:
            enabled[member] = config["enabled"]
    offered = []
    for member, (description, *names) in members.items():
        if enabled[member]:
            required, optional = ({_KINDS.get(n, n): inputs[n] for n in each} for each in names)
            target = ToolTarget(member, family)
            offered.append(_offered(target, [description], _object(required, optional)))
    return offered
