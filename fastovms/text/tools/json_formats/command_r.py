"""Reads and constrains Cohere's calls. Command R7B and later write them between tokens, Command R
and R+ in a block of code:

<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "add", "parameters": {"a": 1}}]<|END_ACTION|>
"""

from fastovms.grammar_tree import Regex, in_order, optional
from fastovms.text.tools.calls.tagged_json import tagged_json

_KEYS = ("tool_name", "parameters")

COMMAND_R7B = tagged_json(
    "command_r7b",
    "<|START_ACTION|>",
    "<|END_ACTION|>",
    keys=_KEYS,
    first=optional(in_order('"tool_call_id": "', Regex("[0-9]{1,3}"), '", ')),
    aliases=("cohere_command3", "cohere_command4"),
    marks=(("<|START_ACTION|>",),),
)
COMMAND_R = tagged_json(
    "command_r",
    "Action: ```json\n",
    "```",
    also=("Action:```json\n", "Action:\n```json\n"),
    keys=_KEYS,
    aliases=("command_r_plus",),
    marks=(("Write 'Action:' followed by",),),
)
