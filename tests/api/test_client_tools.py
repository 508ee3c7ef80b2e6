"""Tests of `fastovms/api/client_tools.py`: tools that clients run and vendors define, in the
Responses API and the Messages API."""

from __future__ import annotations

import importlib
import json
from typing import Any, get_args

import orjson
import pytest

from fastovms.api.client_tools import CLIENT_TOOLS, anthropic_tool, openai_tool
from fastovms.grammar.compiler import GrammarCompiler
from fastovms.grammar.json_schema import enforceable_schema
from fastovms.text.output import call_grammar
from fastovms.text.parameters import CallChoice, Tool
from fastovms.text.tool_descriptions import written_call
from fastovms.text.tools import TOOL_FORMATS
from tests.api.chat_models import call_text, prompt_of
from tests.api.messages.asking import BODY as MESSAGE
from tests.api.messages.asking import PATH as MESSAGES
from tests.api.messages.asking import ask as ask_message
from tests.api.responses.conftest import BODY, TOOL, V1, V3, ask, make, stream_of
from tests.api.responses.events import check, kinds
from tests.fakes import FakeStream
from tests.paths import BYTE_LEVEL_TOKENIZER
from tests.text.tools.checks import calls_in

__all__ = ["make"]

POINT = {"x": 1, "y": 2}
PATCH = {"type": "update_file", "path": "a", "diff": "@@\n-a\n+b"}
NULLS = {"timeout_ms": None, "max_output_length": None}
PREVIEW = {
    "type": "computer_use_preview",
    "display_width": 640,
    "display_height": 480,
    "environment": "linux",
}
FIND = {
    "type": "tool_search",
    "execution": "client",
    "description": "Finds tools",
    "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
}
SEARCH = {"type": "web_search"}
FAILED = {"type": "exit", "exit_code": 1}

CALLS: list[tuple[dict[str, Any], str, dict[str, Any], str, dict[str, Any], dict[str, Any]]] = [
    ({"type": "shell"}, "shell", {"commands": ["ls", "pwd"]},
     "shell_call",
     {"action": {"commands": ["ls", "pwd"], **NULLS}, "environment": {"type": "local"}},
     {"type": "shell_call_output", "output": [{"stdout": "a", "stderr": "", "outcome": FAILED}]}),
    ({"type": "local_shell"}, "local_shell", {"command": ["ls"], "working_directory": "/"},
     "local_shell_call",
     {"action": {"type": "exec", "env": {}, "timeout_ms": None, "user": None, "command": ["ls"],
                 "working_directory": "/"}},
     {"type": "local_shell_call_output", "output": "a"}),
    ({"type": "apply_patch"}, "apply_patch", PATCH,
     "apply_patch_call", {"operation": PATCH},
     {"type": "apply_patch_call_output", "status": "completed", "output": "a"}),
    ({"type": "computer"}, "computer", {"actions": [{"type": "move", **POINT}]},
     "computer_call",
     {"actions": [{"type": "move", **POINT}], "pending_safety_checks": []},
     {"type": "computer_call_output",
      "output": {"type": "computer_screenshot", "image_url": "data:image/png;base64,AAAA"}}),
    (PREVIEW, "computer", {"action": {"type": "screenshot"}},
     "computer_call", {"action": {"type": "screenshot"}, "pending_safety_checks": []},
     {"type": "computer_call_output",
      "output": {"type": "computer_screenshot", "image_url": "data:image/png;base64,AAAA"}}),
    (FIND, "tool_search", {"q": "a"},
     "tool_search_call", {"arguments": {"q": "a"}, "execution": "client"},
     {"type": "tool_search_output", "tools": [TOOL]}),
]  # fmt: skip
"""A tool, its function with the arguments that the model generates, the item of the call, and the
item of its result."""


def named(case: Any) -> str:
    return str(case[0]["type"])


@pytest.mark.parametrize("case", CALLS, ids=named)
@pytest.mark.parametrize("path", [V1, V3])
async def test_call_becomes_an_item_and_its_result_a_message(
    make: Any, case: Any, path: str
) -> None:
    tool, function, arguments, kind, members, result = case
    api = make(call_text(function, json.dumps(arguments)))
    body = {**BODY, "tools": [tool]}
    response = await api.answer(path, body)
    [call] = response["output"]
    ids = {key: call[key] for key in ("id", "call_id")}
    assert call == {**ids, "type": kind, "status": "completed", **members}
    assert (response["status"], response["tools"]) == ("completed", [tool])
    assert prompt_of(api).startswith(f"<tool {function}>")
    final = check(await stream_of(api, body, path))
    assert final["output"] == [
        {**call, **{key: final["output"][0][key] for key in ("id", "call_id")}}
    ]

    answer = {**result, "call_id": call["call_id"]}
    chained = {**body, "previous_response_id": response["id"], "input": [answer]}
    await api.answer(path, chained)
    by_chain = prompt_of(api)
    assert f"{{{function} {arguments}}};t:" in by_chain
    given = [{"role": "user", "content": "Hi"}, call, answer]
    status, third = await ask(api, "POST", path, {**body, "input": given})
    assert (status, prompt_of(api)) == (200, by_chain)
    listed = (await ask(api, "GET", f"{path}/{third['id']}/input_items?order=asc"))[1]["data"]
    assert listed[1] == call
    assert listed[2].items() >= answer.items()


async def test_events_of_commands_and_patches(make: Any) -> None:
    api = make(
        call_text("shell", '{"commands": ["ls"]}') + call_text("apply_patch", json.dumps(PATCH))
    )
    events = await stream_of(api, {"tools": [{"type": "shell"}, {"type": "apply_patch"}]})
    steps = {
        "shell_call_command": ("added", "delta", "done"),
        "apply_patch_call_operation_diff": ("delta", "done"),
    }
    assert kinds(events)[2:-1] == [
        kind
        for family, ends in steps.items()
        for kind in ("output_item.added", *(f"{family}.{end}" for end in ends), "output_item.done")
    ]
    check(events)


async def test_patch_that_deletes_a_file_has_no_diff(make: Any) -> None:
    deleted = {"type": "delete_file", "path": "a"}
    api = make(call_text("apply_patch", json.dumps({**deleted, "diff": ""})))
    _, response = await ask(api, "POST", V1, {**BODY, "tools": [{"type": "apply_patch"}]})
    assert response["output"][0]["operation"] == deleted


@pytest.mark.parametrize(
    "arguments", ['{"commands": "ls"}', '{"commands": [5]}', "{}", '{"commands": ["ls"'], ids=str
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_malformed_call_is_left_out_and_response_is_incomplete(
    make: Any, arguments: str, streamed: bool
) -> None:
    api = make("So." + call_text("shell", arguments))
    body = {**BODY, "tools": [{"type": "shell"}]}
    if streamed:
        response = check(await stream_of(api, body))
    else:
        _, response = await ask(api, "POST", V1, body)
    assert {item["type"] for item in response["output"]} == {"message"}
    assert response["status"] == "incomplete"


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", ["shell", "computer", "get_weather"]),
        ({"type": "shell"}, ["shell"]),
        ({"type": "computer"}, ["computer"]),
        ({"type": "computer_use"}, ["computer"]),
        ({"type": "function", "name": "get_weather"}, ["get_weather"]),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "shell"}, SEARCH]},
            ["shell"],
        ),
        ("none", []),
    ],
)
async def test_tool_choice_names_a_tool_by_its_type(
    make: Any, choice: Any, names: list[str]
) -> None:
    api = make(call_text("shell", '{"commands": ["ls"]}'))
    tools = [{"type": "shell"}, PREVIEW, SEARCH, TOOL]
    response = await api.answer(V1, {**BODY, "tools": tools, "tool_choice": choice})
    assert prompt_of(api) == "".join(f"<tool {name}>" for name in names) + "u:Hi;>"
    if isinstance(choice, dict) and "tools" not in choice:
        assert response["tool_choice"] == choice
        assert '"enum"' in repr(api.backend.submitted[0].params.grammar.tree) or names != [
            "computer"
        ]


@pytest.mark.parametrize("kind", ["container_auto", "container_reference"])
async def test_tools_of_the_vendor_are_passed_over_with_a_warning(make: Any, kind: str) -> None:
    api, stream = make(), FakeStream()
    tools = [{"type": "shell", "environment": {"type": kind}}, {**FIND, "execution": "server"}]
    answer = await api.call("POST", V1, {**BODY, "tools": tools}, stream)
    assert prompt_of(api) == "u:Hi;>"
    warnings = dict(answer.headers)["Warning"]
    assert "tools[0] of type shell, tools[1] of type tool_search" in warnings
    status, body = await ask(api, "POST", V3, {**BODY, "tools": tools})
    assert status >= 400, body


async def test_description_of_a_tool_has_its_skills_or_its_screen(make: Any) -> None:
    skill = {"name": "pdf", "description": "Reads PDFs", "path": "/skills/pdf"}
    shell = {"type": "shell", "environment": {"type": "local", "skills": [skill]}}
    tools = {"tools": [shell, PREVIEW]}
    api = make()
    assert (await ask(api, "POST", V1, {**BODY, **tools}))[1]["tools"] == tools["tools"]
    [shown] = [each.function for each in openai_tool(shell, "tools[0]")]
    assert shown["description"].endswith("pdf (/skills/pdf): Reads PDFs")
    [shown] = [each.function for each in openai_tool(PREVIEW, "tools[0]")]
    assert shown["description"].endswith("Screen: 640 x 480 pixels. System: linux")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "shell", "environment": 5}]}, "tools[0].environment"),
        ({"tools": [{"type": "shell", "environment": {"type": "x"}}]}, "tools[0].environment.type"),
        ({"tools": [{"type": "shell", "environment": {"type": "local", "skills": [{}]}}]},
         "tools[0].environment.skills[0].name"),
        ({"tools": [{**PREVIEW, "display_width": "5"}]}, "tools[0].display_width"),
        ({"tools": [{**FIND, "parameters": 5}]}, "tools[0].parameters"),
        ({"tools": [{"type": "shell"}, {**TOOL, "name": "shell"}]}, "tools[1]"),
        ({"tools": [TOOL], "tool_choice": {"type": "shell"}}, "tool_choice.type"),
        ({"input": [{"type": "shell_call", "call_id": "1"}]}, "input[0].action"),
        ({"input": [{"type": "shell_call", "call_id": "1", "action": {"commands": "ls"}}]},
         "input[0].action.commands"),
        ({"input": [{"type": "shell_call", "call_id": "1", "action": {"commands": [5]}}]},
         "input[0].action.commands[0]"),
        ({"input": [{"type": "shell_call_output", "call_id": "1", "output": "a"}]},
         "input[0].output"),
        ({"input": [{"type": "shell_call_output", "call_id": "1", "output": [{"stdout": 5}]}]},
         "input[0].output[0].stdout"),
        ({"input": [{"type": "shell_call_output", "call_id": "1",
                     "output": [{"outcome": {"type": "x"}}]}]},
         "input[0].output[0].outcome.type"),
        ({"input": [{"type": "shell_call_output", "call_id": "1", "output": [], "status": "x"}]},
         "input[0].status"),
        ({"input": [{"type": "local_shell_call", "id": "1", "action": {"command": "ls"}}]},
         "input[0].action.command"),
        ({"input": [{"type": "local_shell_call_output", "id": "1", "output": []}]},
         "input[0].output"),
        ({"input": [{"type": "apply_patch_call", "call_id": "1", "operation": {"type": "x"}}]},
         "input[0].operation.type"),
        ({"input": [{"type": "apply_patch_call", "call_id": "1",
                     "operation": {"type": "create_file", "path": "a"}}]},
         "input[0].operation.diff"),
        ({"input": [{"type": "apply_patch_call_output", "call_id": "1"}]}, "input[0].status"),
        ({"input": [{"type": "computer_call", "call_id": "1"}]}, "input[0].actions"),
        ({"input": [{"type": "computer_call", "call_id": "1", "action": {"type": "x"}}]},
         "input[0].action.type"),
        ({"input": [{"type": "computer_call", "call_id": "1", "actions": [{"type": "move"}]}]},
         "input[0].actions[0].x"),
        ({"input": [{"type": "computer_call_output", "call_id": "1",
                     "output": {"type": "computer_screenshot"}}]},
         "input[0].output.image_url"),
        ({"input": [{"type": "computer_call_output", "call_id": "1", "output": {"type": "x"}}]},
         "input[0].output.type"),
    ],
)  # fmt: skip
async def test_invalid_client_tool_or_item_is_refused_by_its_place(
    make: Any, fields: Any, param: str
) -> None:
    assert await make().refused(V1, {**BODY, **fields}) == param


# The grammar allows exactly the arguments that the items accept, in every tool call format.


SIZE = {"display_width_px": 640, "display_height_px": 480}
ANTHROPIC: list[tuple[dict[str, Any], str, list[str]]] = [
    ({"type": "bash_20241022"}, "bash", ["command", "restart"]),
    ({"type": "bash_20250124", "name": "bash"}, "bash", ["command", "restart"]),
    ({"type": "text_editor_20241022"}, "str_replace_editor",
     ["command", "path", "file_text", "old_str", "new_str", "insert_line", "view_range"]),
    ({"type": "text_editor_20250728", "max_characters": 9}, "str_replace_based_edit_tool",
     ["command", "path", "file_text", "old_str", "new_str", "insert_line", "insert_text",
      "view_range"]),
    ({"type": "memory_20250818"}, "memory",
     ["command", "path", "file_text", "old_str", "new_str", "insert_line", "insert_text",
      "view_range", "old_path", "new_path"]),
    ({"type": "computer_20241022", **SIZE}, "computer",
     ["action", "coordinate", "start_coordinate", "text", "repeat"]),
    ({"type": "computer_20251124", "enable_zoom": True, **SIZE}, "computer",
     ["action", "coordinate", "start_coordinate", "text", "duration", "scroll_direction",
      "scroll_amount", "region", "repeat"]),
]  # fmt: skip


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    text = BYTE_LEVEL_TOKENIZER.read_text()
    return GrammarCompiler(text, vocab_size=None, eos_token_ids=[0])


@pytest.mark.parametrize("name", sorted(TOOL_FORMATS))
def test_every_format_enforces_the_schemas(compiler: GrammarCompiler, name: str) -> None:
    tool_format = TOOL_FORMATS[name]
    for tool, function, arguments, *_ in CALLS:
        row = CLIENT_TOOLS[tool["type"]]
        schema, unenforced = enforceable_schema(row.parameters)
        offered = Tool(function, schema)
        choice = CallChoice([offered], required=True, parallel=False)
        compiler.compile(call_grammar(tool_format, None, choice, prompt=""))
        [(_, written)] = calls_in(
            tool_format, written_call(tool_format, function, arguments), [offered]
        )
        assert not unenforced
        assert (written, row.members(json.dumps(written)) is not None) == (arguments, True)


@pytest.mark.parametrize(("tool", "name", "properties"), ANTHROPIC)
def test_anthropic_tool_has_the_parameters_of_its_version(
    compiler: GrammarCompiler, tool: Any, name: str, properties: list[str]
) -> None:
    [offered] = anthropic_tool(tool, "tools[0]")
    assert (offered.tool.name, offered.function["name"]) == (name, name)
    assert [*offered.tool.parameters["properties"]] == properties
    choice = CallChoice([offered.tool], required=True, parallel=False)
    compiler.compile(call_grammar(TOOL_FORMATS["qwen3coder"], None, choice, prompt=""))


@pytest.mark.parametrize("streamed", [False, True])
async def test_call_of_a_toolset_names_it(make: Any, streamed: bool) -> None:
    api = make(call_text("computer__left_click", '{"coordinate": [1, 2]}'))
    tools = [{"type": "computer_toolset_20260801", "configs": {"zoom": {"enabled": False}}}]
    message = await ask_message(api, streamed, tools=tools, tool_choice={"type": "any"})
    [block] = message["content"]
    assert (block["name"], block["toolset_name"]) == ("left_click", "computer")
    assert prompt_of(api).count("<tool computer__") == 16
    assert "zoom" not in prompt_of(api)
    result = {"type": "tool_result", "tool_use_id": block["id"], "content": "done"}
    history = [
        *MESSAGE["messages"],
        {"role": "assistant", "content": [block]},
        {"role": "user", "content": [result]},
    ]
    await ask_message(api, streamed, tools=tools, messages=history)
    assert "{computer__left_click " in prompt_of(api)


@pytest.mark.parametrize(
    ("family", "union"),
    [("computer", "BetaComputerMemberInput"), ("browser", "BetaBrowserMemberInput")],
)
def test_toolset_has_the_members_and_inputs_of_the_vendor(family: str, union: str) -> None:
    members = get_args(getattr(importlib.import_module("anthropic.types.beta"), union))
    inputs = {each.__name__.removeprefix(f"Beta{family.title()}"): each for each in members}
    configs = {name: {"enabled": True} for name in ("javascript_exec", "file_upload")}
    given = {"type": f"{family}_toolset_20260801", "configs": {}}
    every = {
        "configs": {**configs, "read_console": {"enabled": True}, "read_network": {"enabled": True}}
    }
    usual = anthropic_tool(given, "t")
    offered = anthropic_tool({**given, **every} if family == "browser" else given, "t")
    assert len(usual) == len(offered) - (4 if family == "browser" else 0)
    found = {}
    for tool in offered:
        name = "".join(map(str.title, str(tool.target.name).split("_"))) + "Input"
        model = inputs[name]
        fields = {field.alias or key: field for key, field in model.model_fields.items()}
        assert {*tool.tool.parameters["properties"]} == {*fields}, name
        needed = {key for key, field in fields.items() if field.is_required()}
        assert {*tool.tool.parameters["required"]} == needed, name
        found[name] = tool
    assert len(found) == len(inputs)


@pytest.mark.parametrize(
    ("tool", "choice", "words"),
    [
        ({"type": "computer_20250124", "name": "computer"}, None, "tools[0].display_width_px"),
        ({"type": "bash_20250124", "name": 5}, None, "tools[0].name"),
        ({"type": "bash_20250124", "strict": 5}, None, "tools[0].strict"),
        ({"type": "computer_toolset_20260801", "configs": {"x": {}}}, None, "tools[0].configs"),
        ({"type": "computer_toolset_20260801", "configs": {"zoom": {"enabled": 1}}}, None,
         "tools[0].configs.zoom.enabled"),
        ({"type": "bash_20250124"}, {"type": "tool", "name": "memory"}, "tool_choice"),
    ],
)  # fmt: skip
async def test_invalid_anthropic_tool_is_refused_by_its_place(
    make: Any, tool: Any, choice: Any, words: str
) -> None:
    body = {**MESSAGE, "tools": [tool], "tool_choice": choice}
    answer = await make().call("POST", MESSAGES, body, FakeStream())
    assert answer.status == 400
    assert words in orjson.loads(answer.body)["error"]["message"]
