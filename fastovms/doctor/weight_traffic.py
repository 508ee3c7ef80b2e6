"""Counts the weights that one decoded token must read, from a model's graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import openvino as ov

_DECOMPRESSION: Final = frozenset(
    ("Convert", "Subtract", "Multiply", "Reshape", "Transpose", "Unsqueeze")
)
"""Operations between a weight as it is stored and the one that is multiplied."""

_NUM_EXPERTS: Final = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_NUM_ACTIVE: Final = ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_topk")
"""What configurations call the experts of a layer, and those that compute one token."""


@dataclass(frozen=True, slots=True)
class WeightTraffic:
    """The bytes of a model's weights.

    Attributes:
        total: all of them.
        looked_up: of tables of which a token reads one row, as of embeddings.
        experts: of those experts that the router chooses among.
        active_share: the share of the experts that compute a token; 1.0 = there are none, or the
            configuration does not say.
    """

    total: int
    looked_up: int
    experts: int
    active_share: float

    @property
    def per_token(self) -> int:
        """What a token must read when it is decoded alone."""
        always = self.total - self.looked_up - self.experts
        return int(always + self.experts * self.active_share)


def read_traffic(model: ov.Model, config: Mapping[str, object]) -> WeightTraffic:
    """Reads the constants of a graph, not their values. `config` is config.json."""
    num_experts = _first_of(config, _NUM_EXPERTS)
    num_active = _first_of(config, _NUM_ACTIVE)
    total = looked_up = experts = 0
    for node in model.get_ops():
        if node.get_type_name() != "Constant":
            continue
        size = node.get_byte_size()
        total += size
        if all(_looks_up(user, number) for user, number in _users(node)):
            looked_up += size
        elif num_experts and _is_expert(node, num_experts):
            experts += size
    is_known = bool(experts and num_active)
    share = num_active / num_experts if is_known else 1.0
    return WeightTraffic(total, looked_up, experts, min(1.0, share))


def _users(node: ov.Node) -> Iterator[tuple[ov.Node, int]]:
    """Yields what computes with a constant, once decompressed, and as which of its inputs."""
    pending = [node]
    while pending:
        for output in pending.pop().outputs():
            for target in output.get_target_inputs():
                user = target.get_node()
                if user.get_type_name() in _DECOMPRESSION:
                    pending.append(user)
                else:
                    yield user, target.get_index()


def _looks_up(user: ov.Node, number: int) -> bool:
    return user.get_type_name() == "Gather" and number == 0


def _is_expert(node: ov.Node, num_experts: int) -> bool:
    """Returns whether a weight is of routed experts: one tensor has those of a layer, or its name
    says it."""
    name, shape = node.get_friendly_name(), node.get_output_shape(0)
    if "shared_expert" in name:
        return False
    return ".experts." in name or (len(shape) > 2 and shape[0] == num_experts)


def _first_of(config: Mapping[str, object], names: tuple[str, ...]) -> int:
    """Returns the first of the integers that the configuration, or its part about text, has; 0 =
    none."""
    for scope in (config, config.get("text_config")):
        for name in names:
            value = scope.get(name) if isinstance(scope, Mapping) else None
            if isinstance(value, int):
                return value
    return 0
