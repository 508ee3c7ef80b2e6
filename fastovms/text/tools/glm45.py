"""GLM 4.5 and later, in which the line breaks may be missing:

<tool_call>add
<arg_key>a</arg_key>
<arg_value>1</arg_value>
</tool_call>
"""

from __future__ import annotations

from collections.abc import Sequence

from fastovms.text.scanning.parser_steps import Output
from fastovms.text.scanning.rules import Rules, literal, one_of
from fastovms.text.scanning.scanner import Scanner, Steps
from fastovms.text.scanning.tool import CallChoice, Tool
from fastovms.text.tools.calls.xml_call import XmlForm, read_named_call, xml_arguments
from fastovms.text.tools.tool_format import ToolFormat, tagged_calls

BEGIN = "<tool_call>"
END = "</tool_call>"
FORM = XmlForm(
    function=("", ""),
    function_end=END,
    parameter=("<arg_key>", "</arg_key>"),
    parameter_end="</arg_value>",
    value="<arg_value>",
    trims_lines=False,
    gap="\n",
    tokens=("<arg_key>", "</arg_key>"),
)
TAGS = (BEGIN, END, *FORM.parameter, FORM.value, FORM.parameter_end)


def parse(scan: Scanner, out: Output, tools: Sequence[Tool]) -> Steps[None]:
    while (yield from scan.until((BEGIN,), out.content)):
        scan.record()
        yield from scan.space()
        pieces: list[str] = []
        tag = yield from scan.until(("\n", "<"), pieces.append)
        if tag:
            scan.put_back(tag)
        yield from read_named_call(scan, out, tools, FORM, "".join(pieces).strip(), BEGIN)


def write_rules(rules: Rules, choice: CallChoice) -> str:
    calls = [
        f"{literal(tool.name)} /\\n?/ {xml_arguments(rules, tool, FORM)}" for tool in choice.tools
    ]
    call = rules.rule(f"{one_of(calls)} {rules.tag(END)}")
    return tagged_calls(rules, choice, begin=rules.tag(BEGIN), block=call, between=r"/\n?/")


GLM45 = ToolFormat("glm45", tags=TAGS, parse=parse, rules=write_rules)
