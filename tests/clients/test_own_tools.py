"""Tests of clients that run the tools which their vendors define, with the server of
`tests.clients.agents.server`: each call is executed, and the answer contains its result."""

from __future__ import annotations

import subprocess
import warnings
from typing import Any

import anthropic
import openai
import pytest
from anthropic.lib.tools import BetaAbstractMemoryTool
from anthropic.tools.computer import BetaAbstractComputerToolset20260801
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.clients.test_agent_traffic import url

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    agents = pytest.importorskip(
        "agents", reason="openai-agents is missing: pip install -e '.[clients]'"
    )

__all__ = ["url"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),
    pytest.mark.nightly(but=("websocket-True", "tool2-apply_patch", "uses_its_toolset")),
]

NAME = "scripted"
DONE = "All is done. RESULT1 RESULT2 RESULT3"


def shell(command: list[str] | str) -> str:
    is_text = isinstance(command, str)
    return subprocess.run(command, shell=is_text, capture_output=True, text=True, check=True).stdout


class Editor:
    """Creates no files, and records its calls."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def create_file(self, operation: Any) -> Any:
        self.asked.append((operation.type, operation.path, operation.diff))
        return agents.ApplyPatchResult(output=f"RESULT{operation.path[0]}")

    update_file = delete_file = create_file


async def run_commands(request: Any) -> Any:
    outputs = [shell(command) for command in request.data.action.commands]
    return agents.ShellResult([agents.ShellCommandOutput(stdout=text) for text in outputs])


def run_command(request: Any) -> str:
    return shell(request.data.action.command)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("kind", ["http", "websocket", "previous_response_id", "conversation"])
async def test_openai_agent_edits_files_with_its_own_tools(
    url: str, streamed: bool, kind: str
) -> None:
    agents.set_tracing_disabled(True)
    editor = Editor()
    tools = [agents.ShellTool(executor=run_commands), agents.ApplyPatchTool(editor=editor)]
    made = agents.OpenAIResponsesModel
    if kind == "websocket":
        made = agents.OpenAIResponsesWSModel
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        options: dict[str, Any] = {}
        if kind == "previous_response_id":
            options["auto_previous_response_id"] = True
        if kind == "conversation":
            options["conversation_id"] = (await client.conversations.create()).id
        model = made(model=NAME, openai_client=client)
        agent = agents.Agent(name="Assistant", model=model, tools=tools)
        if streamed:
            result = agents.Runner.run_streamed(agent, "Do it.", **options)
            async for _ in result.stream_events():
                pass
        else:
            result = await agents.Runner.run(agent, "Do it.", **options)
        if kind == "websocket":
            await model.close()
    assert result.final_output == DONE
    assert editor.asked == [("create_file", "2.txt", "+a\n+b")]


async def test_openai_agent_runs_commands_in_its_local_shell(url: str) -> None:
    agents.set_tracing_disabled(True)
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        model = agents.OpenAIResponsesModel(model=NAME, openai_client=client)
        tools = [agents.LocalShellTool(executor=run_command)]
        agent = agents.Agent(name="Assistant", model=model, tools=tools)
        result = await agents.Runner.run(agent, "Do it.")
    assert result.final_output == DONE


@pytest.mark.parametrize(
    ("tool", "kind"),
    [
        ({"type": "shell", "environment": {"type": "local"}}, "shell_call"),
        ({"type": "local_shell"}, "local_shell_call"),
        ({"type": "apply_patch"}, "apply_patch_call"),
        ({"type": "computer"}, "computer_call"),
    ],
)
def test_items_and_events_match_the_types_of_openai(url: str, tool: Any, kind: str) -> None:
    asked = {"model": NAME, "input": "Do it.", "tools": [tool], "tool_choice": "required"}
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        raw = client.responses.with_raw_response.create(**asked)
        response = TypeAdapter(Response).validate_json(raw.content, strict=True)
        events = list(client.responses.create(**asked, stream=True))
        items = client.responses.input_items.list(response.id)
    [call] = response.output
    assert call.type == kind
    assert events[-1].response.output[0].type == kind
    assert items.data
    for event in events:
        if not event.type.startswith("response.apply_patch_call_operation_diff"):  # not in 3.57
            TypeAdapter(ResponseStreamEvent).validate_python(event.model_dump(), strict=True)


class Memory(BetaAbstractMemoryTool):
    """Has notes in the directory of memories."""

    def __init__(self) -> None:
        super().__init__()
        self.paths: list[str] = []

    def view(self, command: Any) -> str:
        self.paths.append(command.path)
        return f"RESULT{len(self.paths)}"

    create = str_replace = insert = delete = rename = view


@pytest.mark.parametrize("streamed", [False, True])
def test_anthropic_tool_runner_reads_its_memory(url: str, streamed: bool) -> None:
    memory = Memory()
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        runner = client.beta.messages.tool_runner(
            model=NAME,
            max_tokens=400,
            tools=[memory],
            messages=[{"role": "user", "content": "Do it."}],
            stream=streamed,
        )
        final = runner.until_done()
    assert memory.paths == ["/memories"] * 3
    assert final.content[-1].text == DONE


class Desktop(BetaAbstractComputerToolset20260801):
    """Supports the action "wait"."""

    def wait(self, context: Any, input: Any) -> str:
        return f"RESULT{input.duration}"


def test_anthropic_tool_runner_uses_its_toolset(url: str) -> None:
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        runner = client.beta.messages.tool_runner(
            model=NAME,
            max_tokens=400,
            tools=[Desktop()],
            messages=[{"role": "user", "content": "Do it."}],
        )
        final = runner.until_done()
    assert final.content[-1].text == DONE


@pytest.mark.parametrize("streamed", [False, True])
def test_anthropic_client_runs_bash_and_a_text_editor(url: str, streamed: bool) -> None:
    tools: Any = [
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
    ]
    messages: list[Any] = [{"role": "user", "content": "Do it."}]
    used = []
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        for _ in range(4):
            asked: Any = {"model": NAME, "max_tokens": 400, "tools": tools, "messages": messages}
            if streamed:
                with client.messages.stream(**asked) as stream:
                    message = stream.get_final_message()
            else:
                message = client.messages.create(**asked)
            uses = [block for block in message.content if block.type == "tool_use"]
            results = []
            for use in uses:
                used.append(use.name)
                ran = use.name == "bash"
                text = shell(use.input["command"]) if ran else f"RESULT{use.input['path'][1:]}"
                results.append({"type": "tool_result", "tool_use_id": use.id, "content": text})
            messages += [{"role": "assistant", "content": message.content}]
            messages += [{"role": "user", "content": results}] if results else []
    assert used == ["bash", "str_replace_based_edit_tool", "bash"]
    assert message.content[-1].text == DONE
    assert message.stop_reason == "end_turn"
