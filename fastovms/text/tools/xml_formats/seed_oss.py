"""Reads and constrains the calls of Seed-OSS, in which values stand within a line:

<seed:tool_call>
<function=add>
<parameter=a>1</parameter>
</function>
</seed:tool_call>
"""

from fastovms.text.tools.calls.tagged_xml import tagged_xml
from fastovms.text.tools.calls.xml_call import XmlForm

FORM = XmlForm(
    function=("<function=", ">"),
    function_end="</function>",
    parameter=("<parameter=", ">"),
    parameter_end="</parameter>",
    trims_lines=False,
    gap="\n",
)

SEED_OSS = tagged_xml(
    "seed_oss", "<seed:tool_call>", "</seed:tool_call>", FORM, marks=(("<seed:tool_call>",),)
)
