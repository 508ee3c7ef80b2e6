"""What was asked for is written without what the store has already, and read again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from fastovms.api.responses.input.responses_schema import ResponsesRequest
from fastovms.api.responses.resumption.kept_job import (
    KeptJob,
    numbered_ids,
    read_job,
    resumption_of,
    with_seed,
    write_job,
)
from fastovms.api.wire.dialect import OPENAI
from tests.fakes import model_info


def kept_job(**fields) -> KeptJob:
    return KeptJob(
        model="f m",
        dialect="openai",
        body=msgspec.convert({"model": "m", "input": "Hi", **fields}, ResponsesRequest),
        created=7,
        id_key="k",
        prompt_token_ids=[1, 2],
        prompt_text=None,
    )


def test_it_is_read_as_it_was_but_for_the_input():
    fields = {"temperature": 0.5, "metadata": {"a": "\u20ac"}, "stop": ["x"], "tools": []}
    read = read_job(write_job(kept_job(**fields)))
    body = msgspec.structs.replace(kept_job(**fields).body, input=None)
    assert read == msgspec.structs.replace(kept_job(), body=body)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: b"", "another version"),
        (lambda data: data[:-1], "another version"),
        (lambda data: data.replace(b'"id_key"', b'"other"'), "another version"),
        (lambda data: data.replace(b'"form":1', b'"form":2'), "form of the request is 2, not 1"),
    ],
)
def test_what_another_version_has_written(change, message):
    with pytest.raises(ValueError, match=message):
        read_job(change(write_job(kept_job())))


def test_what_cannot_be_written():
    assert write_job(kept_job(metadata={"a": "\ud800"})) is None


def test_a_seed_is_kept_or_given():
    body = kept_job(seed=5).body
    assert with_seed(body) is body
    seeds = {with_seed(kept_job().body).seed for _ in range(20)}
    assert len(seeds) == 20
    assert all(0 <= seed < 2**32 for seed in seeds)


def test_ids_are_those_of_their_key():
    first = list(islice(iter(numbered_ids("a"), None), 50))
    assert list(islice(iter(numbered_ids("a"), None), 50)) == first
    assert len({*first, *islice(iter(numbered_ids("b"), None), 50)}) == 100
    assert all(len(id) == 32 and int(id, 16) >= 0 for id in first)


def job(*, num_samples: int = 1, images: Sequence[str] | None = None) -> Any:
    """What of a job decides."""
    prompt = None if images is None else SimpleNamespace(images=images)
    return SimpleNamespace(
        options=SimpleNamespace(candidates=SimpleNamespace(num_samples=num_samples)),
        task=SimpleNamespace(prompt=prompt),
        prompt=SimpleNamespace(token_ids=(1, 2), text="Hi"),
        preparation=SimpleNamespace(
            body=kept_job().body, model=SimpleNamespace(info=replace(model_info(), fingerprint="f"))
        ),
    )


@pytest.mark.parametrize(
    ("fields", "is_kept"),
    [({}, True), ({"images": ()}, True), ({"images": ("i",)}, False), ({"num_samples": 2}, False)],
)
def test_what_can_be_gone_on_with(fields, is_kept):
    resumption = resumption_of(job(**fields), OPENAI, 7, "k")
    assert (resumption is not None) == is_kept
    if resumption is not None:
        assert resumption.model == "f fake"
        read = read_job(resumption.job)
        assert (read.model, read.dialect, read.created) == ("f fake", OPENAI.name, 7)
        assert (read.prompt_token_ids, read.prompt_text) == ([1, 2], "Hi")
