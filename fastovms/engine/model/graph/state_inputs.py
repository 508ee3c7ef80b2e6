"""Finds the states that a paged model has beside attention, and names their inputs as `StepInputs`
does.

OpenVINO's transformation makes tables of the states of convolutions (LFM 2), gated delta networks
(Qwen 3 Next) and selective state spaces (Granite 4 hybrid). How they are used: see `state_rows`.
"""

from __future__ import annotations

from typing import Any, Final

import openvino as ov

TABLE: Final = "_state_table."
"""What the name of each table's input has in it: what kind of states come before, the layer
after."""

_NAMES: Final = {
    "position_ids": "position_ids",
    "la.block_indices": "state_rows",
    "la.block_indices_begins": "state_row_begins",
    "la.cache_interval": "state_intervals",
}
"""By the names that the transformation gives them, of which an input may have several."""

_PAST_LENS: Final = "past_lens"
_STATE_PAST_LENS: Final = "la.past_lens"


def is_state_table(name: str) -> bool:
    return TABLE in name


def name_inputs(model: ov.Model) -> bool:
    """Names the inputs of a paged model, in place, and returns whether it has states."""
    inputs: dict[str, Any] = {name: port for port in model.inputs for name in port.get_names()}
    for found, name in _NAMES.items():
        if found in inputs:
            inputs[found].set_names({name})
    if _STATE_PAST_LENS in inputs:
        parameter = inputs[_STATE_PAST_LENS].get_node()
        for target in parameter.output(0).get_target_inputs():
            target.replace_source_output(inputs[_PAST_LENS].get_node().output(0))
        model.remove_parameter(parameter)
    return any(map(is_state_table, inputs))
