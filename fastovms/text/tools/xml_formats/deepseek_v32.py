"""Reads and constrains DeepSeek V3.2's calls, in which a parameter says whether it is a string:

<｜DSML｜function_calls>
<｜DSML｜invoke name="add">
<｜DSML｜parameter name="a" string="false">1</｜DSML｜parameter>
</｜DSML｜invoke>
</｜DSML｜function_calls>
"""

from dataclasses import replace

from fastovms.text.tools.calls.tagged_xml import tagged_xml
from fastovms.text.tools.calls.xml_call import XmlForm

TOKEN = "｜DSML｜"
FORM = XmlForm(
    function=(f'<{TOKEN}invoke name="', '">'),
    function_end=f"</{TOKEN}invoke>",
    parameter=(f'<{TOKEN}parameter name="', '">'),
    parameter_end=f"</{TOKEN}parameter>",
    trims_lines=False,
    gap="\n",
    kinds=(' string="true"', ' string="false"'),
    tokens=(TOKEN,),
)

_FOUND = tagged_xml(
    "deepseek_v32",
    f"<{TOKEN}function_calls>",
    f"</{TOKEN}function_calls>",
    FORM,
    is_list=True,
    marks=((TOKEN,),),
)
DEEPSEEK_V32 = replace(_FOUND, tags=(TOKEN,))
