"""Walks over the nodes of a graph, visiting each node once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

Node = Any
"""An `openvino.Node`; the package's annotations are too loose for strict checking."""


def reached(
    start: Iterable[Node], onward: Callable[[Node], Iterable[Node]] | None = None
) -> Iterator[Node]:
    """Yields `start` and all nodes reachable from it, each once. `onward` returns the next nodes of
    a node, and is called after the node was yielded; None = its inputs."""
    pending, seen = list(start), set[int]()
    while pending:
        node = pending.pop()
        if node.get_instance_id() in seen:
            continue
        seen.add(node.get_instance_id())
        yield node
        pending += inputs_of(node) if onward is None else onward(node)


def inputs_of(node: Node) -> list[Node]:
    """Returns the nodes that produce a node's inputs."""
    return [value.get_node() for value in node.input_values()]
