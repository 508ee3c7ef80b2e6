"""Reads and constrains the calls of Qwen 3 Coder, Qwen 3.5 and later:

    <tool_call>
    <function=add>
    <parameter=a>
    1
    </parameter>
    </function>
    </tool_call>

The outer tags may be missing. Nemotron 3, Step 3.5 and MiMo write the same.
"""

from fastovms.grammar_tree import MAYBE_LINE_BREAK
from fastovms.text.tools.calls.tagged_xml import tagged_xml
from fastovms.text.tools.calls.xml_call import XmlForm

FORM = XmlForm(
    function=("<function=", ">"),
    function_end="</function>",
    parameter=("<parameter=", ">"),
    parameter_end="</parameter>",
    line="\n",
    gap="\n",
    mends_ends=True,
)

QWEN3CODER = tagged_xml(
    "qwen3coder",
    "<tool_call>",
    "</tool_call>",
    FORM,
    between=MAYBE_LINE_BREAK,
    aliases=("qwen3_coder", "qwen3_xml", "step3p5", "mimo", "nemotron_v3"),
    marks=(("<tool_call>", "<function=", "<parameter="),),
)
