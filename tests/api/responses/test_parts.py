"""The pure parts: messages from items, truncation, alignment, the event log."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastovms.api.request.prompts import CONTEXT_EXCEEDED, Prompt
from fastovms.api.responses.input.input_items import Reading, read_items
from fastovms.api.responses.input.item_text import seal, unseal
from fastovms.api.responses.input.items_to_messages import to_messages
from fastovms.api.responses.input.truncation import fitting
from fastovms.api.responses.output.alignment import TokenAligner
from fastovms.api.responses.output.events import EventEncoder
from fastovms.api.responses.output.output_items import OutputBuilder, OutputForm
from fastovms.api.responses.stored.event_log import EventLog
from fastovms.api.wire.dialect import OPENAI
from fastovms.errors import InvalidField
from fastovms.text.scanning.output import (
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Piece,
    Reasoning,
)
from fastovms.text.tokens.tracking import TextToken
from tests.api.responses.events import _Output

READING = Reading(OPENAI, lambda prefix: f"{prefix}_new")


def said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def thought(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}


def called(name: str, arguments: str = "{}") -> dict[str, Any]:
    return {
        "type": "function_call",
        "call_id": f"call_{name}",
        "name": name,
        "arguments": arguments,
    }


def answered(name: str, output: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": f"call_{name}", "output": output}


def call(name: str, arguments: str = "{}") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"type": "function", "id": f"call_{name}", "function": function}


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([], []),
        ([said("user", "a"), said("user", "b")], [said("user", "a"), said("user", "b")]),
        (
            [said("assistant", "a"), said("assistant", "b")],
            [said("assistant", "a"), said("assistant", "b")],
        ),
        (
            [thought("hm"), said("assistant", "a")],
            [{**said("assistant", "a"), "reasoning_content": "hm"}],
        ),
        (
            [thought("hm"), thought("ah"), called("f"), called("g", "")],
            [
                {
                    **said("assistant", ""),
                    "reasoning_content": "hm\nah",
                    "tool_calls": [call("f"), call("g")],
                }
            ],
        ),
        (
            [called("f"), said("assistant", "a")],
            [{**said("assistant", "a"), "tool_calls": [call("f")]}],
        ),
        (
            [said("assistant", "a"), called("f"), answered("f", "x"), said("assistant", "b")],
            [
                {**said("assistant", "a"), "tool_calls": [call("f")]},
                {"role": "tool", "content": "x", "tool_call_id": "call_f"},
                said("assistant", "b"),
            ],
        ),
        (
            [thought("hm"), said("user", "a")],
            [{**said("assistant", ""), "reasoning_content": "hm"}, said("user", "a")],
        ),
        (
            [called("f"), thought("hm"), called("g")],
            [
                {**said("assistant", ""), "tool_calls": [call("f")]},
                {**said("assistant", ""), "reasoning_content": "hm", "tool_calls": [call("g")]},
            ],
        ),
        (
            [answered("f", [{"type": "input_text", "text": part} for part in "ab"])],
            [{"role": "tool", "content": "a\nb", "tool_call_id": "call_f"}],
        ),
        (
            [said("assistant", [{"type": "refusal", "refusal": "no"}])],  # type: ignore[arg-type]
            [said("assistant", "no")],
        ),
    ],
)
def test_messages(items, expected):
    read = read_items(items, "input", READING).items
    assert to_messages(read) == expected
    assert to_messages(read, "rules") == [said("system", "rules"), *expected]
    again = read_items(read, "input", READING).items
    assert again == read


@given(st.text())
def test_sealed_reasoning_is_read_again(text):
    assert unseal(seal(text)) == text


@pytest.mark.parametrize("content", ["gAAAAAB_other", "/+8=", "ü"])
def test_what_another_server_has_sealed_is_nothing(content):
    assert unseal(content) == ""


# Truncation


def fit(messages: list[dict[str, str]], limit: int) -> tuple[str, int]:
    num_calls = 0

    def make_prompt(kept) -> Prompt:
        nonlocal num_calls
        num_calls += 1
        text = "".join(f"{message['role'][0]}{message['content']}" for message in kept)
        if len(text) > 2 * limit:
            raise InvalidField("far too long", param="messages", code=CONTEXT_EXCEEDED)
        return Prompt(list(text.encode()), text)

    prompt = fitting(messages, make_prompt, limit)
    return prompt.text or "", num_calls


@pytest.mark.parametrize(
    ("roles", "limit", "expected"),
    [
        ("suaua", 99, "s0u1a2u3a4"),
        ("suaua", 8, "s0u3a4"),
        ("suauau", 4, "s0u5"),
        ("suatatu", 9, "s0u6"),
        ("suatat", 99, "s0u1a2t3a4t5"),
        ("aaaa", 4, "a2a3"),
        ("satat", 6, "s0a3t4"),
        ("u", 2, "u0"),
    ],
)
def test_the_oldest_messages_are_dropped(roles, limit, expected):
    names = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    messages = [{"role": names[role], "content": f"{n}"} for n, role in enumerate(roles)]
    assert fit(messages, limit)[0] == expected


@given(st.lists(st.integers(0, 30), min_size=1, max_size=60), st.integers(1, 300))
def test_as_many_messages_are_kept_as_fit(lengths, limit):
    messages = [{"role": "user", "content": "x" * length} for length in lengths]
    sizes = [length + 1 for length in lengths]
    kept = len(sizes)
    while kept > 1 and sum(sizes[-kept:]) > limit:
        kept -= 1
    if sum(sizes[-kept:]) > 2 * limit:
        return
    text, num_calls = fit(messages, limit)
    assert len(text) == sum(sizes[-kept:])
    assert num_calls <= 9


def test_a_last_message_that_is_far_too_long_is_refused():
    with pytest.raises(InvalidField):
        fit([{"role": "user", "content": "x" * 100}], 10)


# Alignment


def aligned(texts: list[str], tags: tuple[str, ...] = ()) -> TokenAligner:
    """One that has been pushed tokens with these texts."""
    offsets = accumulate(map(len, texts[:-1]), initial=0)
    aligner = TokenAligner(tags)
    aligner.push("".join(texts), [TextToken(i, offset, None) for i, offset in enumerate(offsets)])
    return aligner


@given(
    st.lists(st.tuples(st.booleans(), st.text(alphabet="ab ü\ufffd", min_size=1, max_size=6))),
    st.data(),
)
def test_the_tokens_of_a_text_are_found(pieces, data):
    """Whatever markup is between, and however all of it was cut into tokens."""
    spans = []
    whole = ""
    for place, (is_text, text) in enumerate(pieces):
        start = len(whole)
        whole += text if is_text else f"<{place}>"
        spans.append((start, len(whole)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=20)))
    tokens = list(pairwise([0, *cuts, len(whole)]))
    aligner = aligned([whole[start:end] for start, end in tokens])
    told = set()
    for (is_text, text), (start, end) in zip(pieces, spans, strict=True):
        if is_text:
            of_text = [
                token for token, (s, e) in enumerate(tokens) if start <= s < end or s < start < e
            ]
            expected = [token for token in of_text if token not in told]
            told.update(expected)
            assert [token.token_id for token in aligner.take(text)] == expected


@pytest.mark.parametrize(
    ("tokens", "piece", "expected"),
    [
        (["</think>", "\n", "in", " the"], "in the", [2, 3]),
        (["</think>", "\n", "in", " the"], "in", [2]),
        (["<think>", "</think>", "t", "h"], "th", [2, 3]),
        (["</think>", "x"], "</think>", [0]),  # a text may say it, too
        (["</think>", "x"], "k", []),
        (["<think>", "</think>"], "k", []),
        (["<b>in", "in"], "in", [0]),
    ],
)
def test_no_piece_is_found_within_a_tag(tokens, piece, expected):
    aligner = aligned(tokens, ("<think>", "</think>"))
    assert [token.token_id for token in aligner.take(piece)] == expected


@pytest.mark.parametrize(
    ("tokens", "piece", "expected"),
    [
        # The first bytes of a character, and special tokens that are skipped.
        (["<b>", "", "é", "x"], "éx", [1, 2, 3]),
        (["a", "", "b", ""], "ab", [0, 1, 2]),
        (["<b>", "", "", "a"], "a", [1, 2, 3]),
        (["a", "", "</b>"], "a", [0]),
        (["", "<b>", "a"], "a", [2]),
    ],
)
def test_tokens_without_text(tokens, piece, expected):
    assert [token.token_id for token in aligned(tokens).take(piece)] == expected


def test_tokens_that_come_before_their_text():
    aligner = TokenAligner()
    aligner.push("<b>H", [TextToken(0, 0, None), TextToken(1, 3, None)])
    aligner.push("ello", [TextToken(2, 5, None)])
    assert [token.token_id for token in aligner.take("He")] == [1]
    aligner.push("</b>x", [TextToken(3, 8, None), TextToken(4, 12, None)])
    assert [token.token_id for token in aligner.take("llo")] == [2]
    assert aligner.take("not there") == []
    assert [token.token_id for token in aligner.take("x")] == [4]


# The event log

FRAMES = st.lists(st.binary(max_size=20).map(lambda data: b"data: %b\n\n" % data.hex().encode()))


@given(st.lists(FRAMES, max_size=5), FRAMES, st.integers(0, 30))
def test_the_log_gives_back_what_it_was_given(batches, last, start):
    log = EventLog()
    for batch in batches:
        log.append(batch)
        log._seal()
    frames = [frame for batch in batches for frame in batch]
    assert log.num_events == len(frames)
    assert read_all(log, start) == frames[start:]
    loaded = EventLog.load(log.dump(last))
    assert loaded.is_closed
    assert read_all(loaded, start) == [*frames, *last][start:]


def test_a_long_log_is_compressed():
    log = EventLog()
    frames = [b'data: {"sequence_number":%d,"delta":"some text"}\n\n' % n for n in range(50_000)]
    for frame in frames:
        log.append([frame])
    assert sum(map(len, log._packs)) < sum(map(len, frames)) / 5
    assert read_all(log, 0) == frames
    assert read_all(EventLog.load(log.dump([])), 49_990) == frames[49_990:]


def read_all(log: EventLog, start: int) -> list[bytes]:
    frames: list[bytes] = []
    while start + len(frames) < log.num_events:
        some = log.read(start + len(frames))
        assert some
        frames += some
    return frames


def test_listeners_are_told_until_they_are_forgotten():
    log = EventLog()
    seen = []
    log.listen("a", lambda: seen.append(log.num_events))
    log.append([b"x\n\n"])
    log.append([], closes=True)
    log.forget("a")
    log.append([b"x\n\n"])
    assert seen == [1, 1]


# Output

TEXT = st.text(alphabet="ab \n", min_size=1, max_size=5)
CALLS = st.lists(TEXT, max_size=3).flatmap(
    lambda texts: st.booleans().map(
        lambda complete: [
            CallBegin(0, "f"),
            *(CallArguments(0, text) for text in texts),
            CallEnd(0, complete),
        ]
    )
)
PIECES = st.lists(
    st.one_of(TEXT.map(lambda text: [Content(text)]), TEXT.map(lambda t: [Reasoning(t)]), CALLS),
    max_size=8,
).map(lambda groups: [piece for group in groups for piece in group])


@given(PIECES, st.sampled_from(["completed", "incomplete"]), st.data())
def test_events_add_up_to_the_items(pieces: list[Piece], status, data):
    encoder = EventEncoder(named=True)
    ids = iter(range(1000))
    form = OutputForm(lambda prefix: f"{prefix}_{next(ids)}", lambda: f"call_{next(ids)}")
    builder = OutputBuilder(form, encoder.emit)
    while pieces:
        num_pieces = data.draw(st.integers(1, len(pieces)))
        builder.push(pieces[:num_pieces])
        del pieces[:num_pieces]
    builder.finish(status)
    events = [orjson.loads(frame.partition(b"data: ")[2]) for frame in encoder.take()]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    output = _Output()
    for event in events:
        output.take(event)
    assert output.open is None
    assert output.items == builder.items
    assert builder.items
