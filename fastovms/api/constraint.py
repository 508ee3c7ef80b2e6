"""Builds the constraints on an answer: a grammar, and the limit on reasoning."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from fastovms.api.body import show
from fastovms.api.chat_tools import ToolUse
from fastovms.api.client_request import ClientRequest
from fastovms.api.prompt import Chat, Prompt
from fastovms.api.request_schemas import GenerationFields
from fastovms.api.served import ServedModel
from fastovms.config import ApiConfig
from fastovms.errors import (
    BackendUnavailable,
    FieldFault,
    InvalidField,
    RequestError,
    SchemaRefused,
)
from fastovms.grammar_tree import num_characters
from fastovms.params import (
    Grammar,
    GrammarKind,
    ReasoningBudget,
    ReasoningTags,
    SamplingParams,
)
from fastovms.system.deferred import Deferred
from fastovms.text.output import answer_grammar, call_grammar, opens_reasoning
from fastovms.text.parameters import CallChoice, Tool
from fastovms.text.reasoning import ReasoningFormat, ReasoningMarkup
from fastovms.text.tools.tool_format import TaggedCalls, ToolFormat

grammar_of: Final[Deferred[[ClientRequest[Any], list[str]], Grammar | None]] = Deferred(
    "api.structured:grammar_of"
)
enforceable_schema: Final[Deferred[[Mapping[str, Any]], tuple[Any, tuple[Any, ...]]]] = Deferred(
    "grammar.json_schema:enforceable_schema"
)

CONSTRAINTS: Final = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")
"""The fields of `structured_outputs`; vLLM's older fields have the prefix `guided_`."""

_FIELDS: Final = (
    *(f"guided_{constraint}" for constraint in (*CONSTRAINTS, "whitespace_pattern")),
    *("structured_outputs", "json_schema", "grammar", "regex", "ebnf"),
)


def constraint_of(request: ClientRequest[GenerationFields], warnings: list[str]) -> Grammar | None:
    """Returns the requested constraint, not yet compiled; None = none. Appends warnings about
    keywords that cannot be enforced to `warnings`; see `structured.grammar_of`."""
    body = request.body
    if request.response_format is None and all(
        getattr(body, name, None) is None for name in _FIELDS
    ):
        return None
    return grammar_of(request, warnings)


_MAX_REASON: Final = 300
"""The maximum number of characters of the grammar compiler's message that are shown: it may contain
the whole grammar."""


def check_length(grammar: Grammar, config: ApiConfig) -> None:
    """Raises InvalidField if a grammar's source is too long to compile."""
    length = len(grammar.source) + num_characters(grammar.tree)
    if length > config.max_grammar_length:
        raise InvalidField.about(
            grammar.param, f"must be at most {config.max_grammar_length} characters, not {length}"
        )


async def compile_grammar(grammar: Grammar, model: ServedModel, client: str) -> Grammar:
    """Compiles a grammar for `SamplingParams`. Raises InvalidField if it is invalid, and
    BackendError if too many grammars wait, or the compiler is not available. `client` is the
    sender."""
    try:
        return await model.backend.compile_grammar(grammar, client)
    except RequestError as error:
        reason = error.message
        if len(reason) > _MAX_REASON:
            reason = f"{reason[:_MAX_REASON]}..."
        raise InvalidField(f"{grammar.param}: {reason}", param=grammar.param) from None


_NOT_ENFORCED = "the schemas of the tools are not enforced"
_ANY_ARGUMENTS = {"type": "object"}


class Constraint(NamedTuple):
    """The constraint on the text of an answer.

    Attributes:
        is_optional: whether the constraint is dropped with a warning if it cannot be compiled.
        parts: the grammars of which it consists, each with the field that errors name.
        warnings: parts of the request that are not enforced.
        calls: the tool calls that it allows; None = none.
    """

    grammar: Grammar | None
    warnings: list[str]
    is_optional: bool = False
    parts: Sequence[Grammar] = ()
    calls: _Calls | None = None


@dataclass(frozen=True, slots=True)
class _Calls:
    """The tools that an answer may call, and the grammar of the answer.

    Attributes:
        tools: the tools of the request, unchanged.
        choice: the allowed calls, with schemas reduced to keywords that grammars can enforce.
        build: returns the grammar of the answer for allowed calls. Raises InvalidField.
    """

    tools: ToolUse
    tool_format: ToolFormat
    choice: CallChoice
    build: Callable[[CallChoice], Grammar]

    @property
    def free(self) -> Sequence[Tool]:
        """The tools whose schema need not be enforced."""
        if self.tools.is_required:
            return ()
        return [tool for tool in self.choice.tools if tool.name not in self.tools.strict]

    def only(self, tools: Sequence[Tool]) -> Grammar:
        """Returns the grammar of calls to these tools alone. Raises InvalidField if it cannot be
        built."""
        tree = self.tool_format.grammar(replace(self.choice, tools=tools, required=True))
        return Grammar(GrammarKind.CALLS, "", "tools", tree)

    def without(self, names: Collection[str]) -> Grammar:
        """Returns the grammar in which these tools accept any arguments. Raises InvalidField if it
        cannot be built."""
        tools = [
            replace(tool, parameters=_ANY_ARGUMENTS) if tool.name in names else tool
            for tool in self.choice.tools
        ]
        return self.build(replace(self.choice, tools=tools))

    def named(self, tool: Tool, fault: str) -> str:
        """Returns the error message about a tool's schema, beginning with the schema's path in the
        request."""
        place = self.tools.places.get(tool.name, "tools")
        is_path = re.split(r"[ .:\[]", fault, maxsplit=1)[0] in tool.parameters
        return f"{place}{'.' if is_path else ': '}{fault}"


def constraint(
    request: ClientRequest[GenerationFields], chat: Chat, prompt: str
) -> Constraint | None:
    """Returns the constraint on the answer to a chat; None = none. Takes time proportional to the
    schemas. Raises InvalidField if fields contradict each other or are malformed. `prompt` is the
    rendered prompt, which may have opened reasoning."""
    tools, served = chat.tools, request.model.chat
    tool_format, reasoning_format = served.tool_format, served.reasoning_format
    if reasoning_format is not None and chat.options.kwargs.get("enable_thinking") is False:
        reasoning_format = reasoning_format if opens_reasoning(reasoning_format, prompt) else None
    warnings: list[str] = []
    asked = constraint_of(request, warnings)
    if tools.is_required:
        if tool_format is None:
            raise InvalidField.about(
                "tool_choice",
                "must be auto or none: the tool call format of this model is not known",
            )
        if asked is not None and not asked.param.startswith(request.names.response_format):
            raise InvalidField.about(asked.param, "cannot be used when tool_choice requires a call")
    wanted = None if tools.is_required else asked
    if tool_format is None or not tools.tools:
        if wanted is None:
            return None
        return Constraint(answer_grammar(wanted, reasoning_format, prompt=prompt), warnings)

    def build(choice: CallChoice) -> Grammar:
        if wanted is not None:
            calls = tool_format, choice
            return answer_grammar(wanted, reasoning_format, prompt=prompt, calls=calls)
        grammar = call_grammar(tool_format, reasoning_format, choice, prompt=prompt)
        check_length(grammar, request.config)
        return grammar

    calls = _Calls(tools, tool_format, tools.choice, build)
    calls = replace(calls, choice=replace(tools.choice, tools=_enforceable(calls, warnings)))
    is_optional = wanted is None and not (tools.is_required or tools.is_strict)
    try:
        grammar = _build_grammar(calls, request.config, warnings)
    except InvalidField as error:
        if not is_optional:
            raise
        return Constraint(None, [*warnings, f"{_NOT_ENFORCED}: {error.message}"])
    return Constraint(grammar, warnings, is_optional, tools.input_grammars, calls)


def _build_grammar(calls: _Calls, config: ApiConfig, warnings: list[str]) -> Grammar:
    """Returns the grammar of an answer. A tool whose schema is too long, or cannot be expressed in
    the tool-call format, accepts any arguments if it is not strict, with a warning. Raises
    InvalidField if it is strict."""
    try:
        return calls.build(calls.choice)
    except InvalidField:
        faults: dict[str, str] = {}
        for tool in calls.free:
            try:
                check_length(calls.only([tool]), config)
            except InvalidField as error:
                faults[tool.name] = error.message
        if not faults:
            raise
        warnings += [f"{_parameters_of(name)} are not enforced: {faults[name]}" for name in faults]
        return calls.without(faults)


async def usable(
    request: ClientRequest[GenerationFields], wanted: Constraint | None
) -> Grammar | None:
    """Returns the compiled grammar. Returns None if there is none, or if an optional one cannot be
    compiled, with a warning. If only one tool's schema cannot be compiled, that tool accepts any
    arguments, unless it is strict.

    Raises:
        InvalidField: the grammar is invalid. The error names the invalid part if there is one.
        BackendError: the compiler is overloaded.
    """
    if wanted is None or wanted.grammar is None:
        return None
    try:
        return await compile_grammar(wanted.grammar, request.model, request.client)
    except (InvalidField, BackendUnavailable) as error:
        fault = error
    try:
        if isinstance(fault, InvalidField) and wanted.calls is not None:
            calls = wanted.calls
            for part in wanted.parts if not wanted.is_optional else ():
                await compile_grammar(part, request.model, request.client)
            found = await _refused(request, calls, calls.choice.tools, is_all=True)
            kept = found.keys() - {tool.name for tool in calls.free}
            for name in calls.tools.places:
                if name in kept:
                    raise InvalidField(f"{found[name]} (the tool {show(name)})", param="tools")
            if found:
                grammar = calls.without(found)
                compiled = await compile_grammar(grammar, request.model, request.client)
                for name, text in found.items():
                    wanted.warnings.append(f"{_parameters_of(name)} are not enforced: {text}")
                return compiled
    except (InvalidField, BackendUnavailable) as error:
        fault = error
    if not wanted.is_optional:
        raise fault
    wanted.warnings.append(f"{_NOT_ENFORCED}: {fault}")
    return None


async def _refused(
    request: ClientRequest[GenerationFields],
    calls: _Calls,
    tools: Sequence[Tool],
    *,
    is_all: bool = False,
) -> dict[str, str]:
    """Returns the error of each tool whose calls cannot be compiled, by name. Tests halves of the
    tools, then halves of those, so that few grammars are compiled. Results are cached. `is_all`: it
    is already known that the tools cannot be compiled together."""
    try:
        if not is_all or len(tools) == 1:
            await compile_grammar(calls.only(tools), request.model, request.client)
            return {}
    except InvalidField as error:
        if len(tools) == 1:
            return {tools[0].name: await _fault(request, calls, tools[0]) or error.message}
    middle = len(tools) // 2
    first = await _refused(request, calls, tools[:middle])
    return {**first, **await _refused(request, calls, tools[middle:])}


async def _fault(request: ClientRequest[GenerationFields], calls: _Calls, tool: Tool) -> str:
    """Returns the error of a tool's schema alone; "" = none."""
    grammar = Grammar(GrammarKind.JSON_SCHEMA, tool.arguments.schema, "tools")
    try:
        await request.model.backend.compile_grammar(grammar, request.client)
    except SchemaRefused as error:
        return calls.named(tool, error.reason)
    except RequestError:
        pass
    return ""


def _parameters_of(name: str) -> str:
    return f"the parameters of {show(name)}"


def _enforceable(calls: _Calls, warnings: list[str]) -> Sequence[Tool]:
    """Returns the tools with only the schema keywords that grammars can enforce. Adds a warning for
    each other keyword. Raises InvalidField if a strict tool has a keyword that cannot be enforced,
    or the schema of a tool that is strict or must be called is malformed."""
    found: list[Tool] = []
    for tool in calls.choice.tools:
        name, tool_name = _parameters_of(tool.name), f"(the tool {show(tool.name)})"
        is_strict = tool.name in calls.tools.strict
        try:
            schema, unenforced = enforceable_schema(tool.parameters)
        except ValueError as error:
            fault = calls.named(tool, str(error))
            if is_strict or calls.tools.is_required:
                raise InvalidField(f"{fault} {tool_name}", param="tools") from None
            warnings.append(f"{name} are not enforced: {fault}")
            schema, unenforced = _ANY_ARGUMENTS, ()
        if is_strict and unenforced:
            fault = calls.named(tool, str(unenforced[0]))
            raise InvalidField(f"{fault} {tool_name}", param="tools")
        if unenforced:
            warnings.append(f"{name}: {', '.join(map(str, unenforced))}")
        found.append(replace(tool, parameters=schema, is_relaxed=not is_strict))
    return found


_EFFORT_BUDGETS: Final[Mapping[object, int]] = {
    "minimal": 512,
    "low": 1024,
    "medium": 8192,
    "high": 24576,
}
"""The reasoning budget in tokens by `reasoning_effort`, if the template does not support levels.
The numbers are those of Google's OpenAI-compatible API; higher efforts have no limit."""


def with_reasoning_budget(
    request: ClientRequest[GenerationFields],
    params: SamplingParams,
    chat: Chat,
    prompt: Prompt,
    warnings: list[str],
) -> SamplingParams:
    """Returns the parameters with the limit on reasoning, if there is one: the request's, its
    effort's, or the operator's, in this order. Raises InvalidField if the request sets a limit and
    the backend cannot enforce it; a limit of other origin that is not enforced adds a warning."""
    asked, model = request.body.thinking_token_budget, request.model
    limit = asked
    if limit is None:
        effort = chat.options.kwargs.get("reasoning_effort")
        template = model.chat.template
        if isinstance(effort, str) and template is not None and not template.knows_effort:
            limit = _EFFORT_BUDGETS.get(effort)
    if limit is None:
        limit = model.chat.config.reasoning_budget
    if limit < 0:
        return params
    reasoning_format = model.chat.reasoning_format
    if reasoning_format is None:
        if asked is not None:
            warnings.append("thinking_token_budget: no reasoning is known of this model")
        return params
    budget = _reasoning_budget(model, reasoning_format, limit, chat.tools, prompt)
    limited = replace(params, reasoning_budget=budget)
    try:
        model.backend.check(limited)
    except FieldFault as fault:
        if asked is not None:
            raise request.names.named(fault) from fault
        warnings.append(f"reasoning is not limited: {fault}")
        return params
    return limited


def _reasoning_budget(
    model: ServedModel,
    reasoning_format: ReasoningFormat,
    limit: int,
    tools: ToolUse,
    prompt: Prompt,
) -> ReasoningBudget:
    message, tokenizer = model.chat.config.reasoning_budget_message, model.tokenizer
    tags = tuple(
        ReasoningTags(
            begin.encode(),
            end.encode(),
            tuple(tokenizer.encode(message + end, add_special_tokens=False)),
        )
        for begin, end in reasoning_format.sections
    )
    calls = model.chat.tool_format.parse if model.chat.tool_format and tools.tools else None
    is_tagged = isinstance(reasoning_format.parse, ReasoningMarkup)
    return ReasoningBudget(
        limit,
        tags,
        is_inside=opens_reasoning(reasoning_format, prompt.end),
        is_anywhere=not isinstance(reasoning_format.parse, ReasoningMarkup)
        or reasoning_format.parse.anywhere,
        other_ends=tuple(begin.encode() for begin in calls.begins)
        if is_tagged and isinstance(calls, TaggedCalls) and calls.end_reasoning
        else (),
        token_bytes=tokenizer.all_token_bytes,
    )
