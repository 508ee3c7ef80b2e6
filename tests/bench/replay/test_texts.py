"""The texts that are played, made of two releases of a package."""

from __future__ import annotations

import json
from itertools import islice

import pytest
from tokenizers import Tokenizer

from bench.replay.agent_loops import NUM_CALLS, agent_loops
from bench.replay.edits import edits
from bench.replay.extraction import SCHEMA, extraction
from bench.replay.packages import Package
from bench.replay.vocabulary import END_TOKEN_ID, Vocabulary

FUNCTION = '''def name{number}(first: int, second: str = "") -> bool:
    """Tells whether the first number, {number}, is that of the second text.

    There is more of it here, and it stays out of the summary.
    """
    return first == len(second) + {number}

'''
OLD = "".join(FUNCTION.format(number=number) for number in range(40))
NEW = "".join(
    FUNCTION.format(number=number).replace("len(second)", "len(second.strip())" * (number % 3 == 1))
    if number % 3 == 1
    else FUNCTION.format(number=number)
    for number in range(40)
)
PACKAGE = Package("some", {"some/module.py": OLD}, {"some/module.py": NEW})


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.trained([OLD], num_token_ids=600)


def text(vocabulary: Vocabulary, token_ids: tuple[int, ...]) -> str:
    decoded: str = Tokenizer.from_str(vocabulary.tokenizer_json).decode(list(token_ids))
    return decoded


def test_changes_of_a_file_are_all_that_changes() -> None:
    changed = OLD
    changes = list(PACKAGE.changes(12))
    assert len(changes) > 5
    for path, old, new in changes:
        assert path == "some/module.py"
        assert changed.count(old) == 1
        changed = changed.replace(old, new)
    assert changed == NEW


def test_edits_answer_with_the_newer_text(vocabulary: Vocabulary) -> None:
    session = next(edits(PACKAGE, vocabulary))
    for turn in session.turns:
        old = text(vocabulary, turn.prompt).split("```python\n")[1].split("```")[0]
        new = text(vocabulary, turn.answer).removeprefix("```python\n").removesuffix("```")
        assert old in OLD
        assert new in NEW
        assert old != new


@pytest.mark.parametrize("with_grammar", [False, True])
def test_extraction_answers_with_records(vocabulary: Vocabulary, with_grammar: bool) -> None:
    session = next(extraction(PACKAGE, vocabulary, with_grammar=with_grammar))
    (turn,) = session.turns
    assert turn.answer[-1] == END_TOKEN_ID
    records = json.loads(text(vocabulary, turn.answer[:-1]))
    assert records[1] == {
        "name": "name1",
        "parameters": ["first: int", "second: str"],
        "returns": "bool",
        "summary": "Tells whether the first number, 1, is that of the second text.",
    }
    assert records[1].keys() == SCHEMA["items"]["properties"].keys()  # type: ignore[index]
    assert (turn.grammar is not None) is with_grammar


def test_an_agent_edits_what_it_has_read(vocabulary: Vocabulary) -> None:
    thoughts = iter([f"Thought number {number}." for number in range(15)])
    sessions = list(agent_loops(PACKAGE, vocabulary, thoughts))
    assert [len(session.turns) for session in sessions] == [NUM_CALLS]  # no thought twice
    changed, history = OLD, ()
    for turn in sessions[0].turns:
        assert turn.prompt[: len(history)] == history
        history = turn.prompt + turn.answer
        said = text(vocabulary, turn.answer)
        call = json.loads(said.split("<tool_call>\n")[1].removesuffix("\n</tool_call>"))
        arguments = call["arguments"]
        if call["name"] == "edit_file":
            assert arguments["old_text"] in text(vocabulary, turn.prompt)
            changed = changed.replace(arguments["old_text"], arguments["new_text"], 1)
    some = list(islice(PACKAGE.changes(24), 3))
    assert len(some) == 3
    for _, old, new in some:
        assert old not in changed
        assert new in changed
