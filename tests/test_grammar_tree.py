"""Trees as values."""

from __future__ import annotations

import pickle

import pytest

from fastovms.grammar_tree import (
    EMPTY,
    InOrder,
    Json,
    Literal,
    Node,
    OneOf,
    Regex,
    Separated,
    Tag,
    in_order,
    num_characters,
    one_of,
    optional,
)
from fastovms.params import Grammar, GrammarKind

A, B = Literal("a"), Literal("b")
TREE = in_order(Tag("<t>"), optional(Json.of({})), Separated(((A, True), (B, False)), ", "))


def test_trees_are_equal_in_another_process_too() -> None:
    copy = pickle.loads(pickle.dumps(TREE))
    assert copy == TREE
    assert hash(copy) == hash(TREE)
    assert Grammar(GrammarKind.CALLS, "", tree=copy) == Grammar(GrammarKind.CALLS, "", tree=TREE)
    assert len({A, B, Tag("a"), Regex("a"), InOrder((A,)), OneOf((A,))}) == 6


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        (in_order(), EMPTY),
        (in_order("a"), A),
        (in_order("a", "", in_order(B, in_order("a"))), InOrder((A, B, A))),
        (one_of("a"), A),
        (one_of("a", ""), OneOf((A, EMPTY))),
        (optional(A), OneOf((A, EMPTY))),
    ],
)
def test_texts_are_literals_and_sequences_are_flat(tree: Node, expected: Node) -> None:
    assert tree == expected


def test_repeated_node_of_a_grammar_counts_once() -> None:
    assert num_characters(None) == 0
    assert num_characters(TREE) == len("<t>{}ab, ")
    assert num_characters(InOrder((TREE, TREE, Regex("x", unlike=("yz",))))) == 9 + 3


def test_options_of_a_compiler_are_no_part_of_a_schema() -> None:
    assert Json.of({"type": "null", "x-guidance": {}}) == Json('{"type": "null"}')
