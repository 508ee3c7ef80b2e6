"""Reads and constrains MiniMax M2's calls:

<minimax:tool_call>
<invoke name="add">
<parameter name="a">1</parameter>
</invoke>
</minimax:tool_call>
"""

from fastovms.text.tools.calls.tagged_xml import tagged_xml
from fastovms.text.tools.calls.xml_call import XmlForm

FORM = XmlForm(
    function=('<invoke name="', '">'),
    function_end="</invoke>",
    parameter=('<parameter name="', '">'),
    parameter_end="</parameter>",
    trims_lines=False,
    gap="\n",
)

MINIMAX_M2 = tagged_xml(
    "minimax_m2",
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    FORM,
    is_list=True,
    marks=(("<minimax:tool_call>",),),
)
