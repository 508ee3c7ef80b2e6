"""The events of an answer add up to its items."""

from __future__ import annotations

from collections.abc import Sequence

import orjson
from hypothesis import given
from hypothesis import strategies as st

from fastovms.api.generation.alignment import TokenAligner
from fastovms.api.responses.output.events import EventEncoder
from fastovms.api.responses.output.output_items import OutputBuilder, OutputForm
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


def test_the_tokens_of_a_text_behind_a_call_are_its_own() -> None:
    """Also where the call says the same."""
    text = '<c>{"add": 1}</c> add'
    told: list[int] = []

    def tell(tokens: Sequence[TextToken]) -> list[bytes]:
        told.extend(token.token_id for token in tokens)
        return [b"{}" for _ in tokens]

    form = OutputForm(
        lambda prefix: prefix,
        lambda: "call",
        aligner=TokenAligner({"<c>", "</c>"}),
        tell_logprobs=tell,
    )
    builder = OutputBuilder(form, EventEncoder(named=True).emit)
    call = [CallBegin(0, "f"), CallArguments(0, "{}"), CallEnd(0, True, text.index("}") + 1)]
    tokens = [TextToken(place, place, None) for place in range(len(text))]
    builder.push([*call, Content("add")], text, tokens)
    builder.finish("completed")
    assert told == [18, 19, 20]
