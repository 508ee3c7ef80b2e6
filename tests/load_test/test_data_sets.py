from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from fastovms.errors import ConfigurationError
from fastovms.load_test.data_sets import RANDOM_TOKEN_IDS, Sample, draw_samples
from fastovms.load_test.load_config import DEFAULT_OUTPUT_LEN, DataConfig


def draw(config: DataConfig, number: int = 20, *, as_text: bool = False) -> list[Sample]:
    return draw_samples(config, number, random.Random(0), as_text=as_text)


def test_random_prompts_have_their_length_and_differ() -> None:
    samples = draw(DataConfig(random_input_len=30, random_output_len=7))
    assert all(len(sample.prompt) == 30 and sample.output_len == 7 for sample in samples)
    assert all(set(sample.prompt) <= set(RANDOM_TOKEN_IDS) for sample in samples)
    assert len({tuple(sample.prompt) for sample in samples}) == 20
    assert samples == draw(DataConfig(random_input_len=30, random_output_len=7)), "the seed's"


def test_as_text_each_token_is_a_word() -> None:
    [sample] = draw(DataConfig(random_input_len=30), 1, as_text=True)
    assert isinstance(sample.prompt, str)
    assert len(sample.prompt.split()) == 30


def test_lengths_vary_by_the_ratio() -> None:
    samples = draw(DataConfig(random_input_len=100, random_range_ratio=0.5), 300)
    lengths = [len(sample.prompt) for sample in samples]
    assert 50 <= min(lengths) < 60
    assert 140 < max(lengths) <= 150
    assert len({sample.output_len for sample in samples}) > 20


@pytest.mark.parametrize("as_text", [False, True])
def test_prefixes_are_repeated(as_text: bool) -> None:
    config = DataConfig(
        dataset_name="prefix_repetition",
        prefix_repetition_prefix_len=5,
        prefix_repetition_suffix_len=4,
        prefix_repetition_num_prefixes=3,
        prefix_repetition_output_len=9,
    )
    samples = draw(config, as_text=as_text)
    prompts = [p.split() if isinstance(p, str) else p for p, _ in samples]
    assert {len(prompt) for prompt in prompts} == {9}
    assert sorted(Counter(tuple(prompt[:5]) for prompt in prompts).values()) == [6, 7, 7]
    assert len({tuple(prompt) for prompt in prompts}) == 20
    assert {sample.output_len for sample in samples} == {9}


def test_a_file_of_lines(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a", "output_tokens": 3}\n\n{"prompt": "b"}\n')
    config = DataConfig(dataset_name="custom", dataset_path=str(path))
    assert sorted(draw(config, 2)) == [("a", 3), ("b", DEFAULT_OUTPUT_LEN)]
    assert len(draw(config, 5)) == 5, "again from the start"
    assert len(draw(config, 1)) == 1
    config = DataConfig(dataset_name="custom", dataset_path=str(path), output_len=8)
    assert {sample.output_len for sample in draw(config, 2)} == {8}


def test_first_turns_of_conversations(tmp_path: Path) -> None:
    path = tmp_path / "sharegpt.json"
    turns = [{"from": "human", "value": "Who?"}, {"from": "gpt", "value": "x" * 40}]
    path.write_text(json.dumps([{"conversations": turns}, {"conversations": turns[:1]}]))
    config = DataConfig(dataset_name="sharegpt", dataset_path=str(path))
    assert draw(config, 1) == [("Who?", 10)]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("custom", None, "--dataset-name custom needs --dataset-path"),
        ("custom", "", "has no prompt"),
        ("custom", "{", "must have lines of JSON"),
        ("custom", '{"prompt": 5}', "must have lines of JSON"),
        ("custom", "[]", "must have lines of JSON"),
        ("sharegpt", "{}", "has no prompt"),
        ("sharegpt", '[{"a": 1}]', "must have a JSON list"),
        ("sharegpt", b"\xff", "cannot read --dataset-path .*no UTF-8"),
    ],
)
def test_what_is_no_data_set(
    tmp_path: Path, name: str, content: str | bytes | None, message: str
) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    config = DataConfig(dataset_name=name, dataset_path=None if content is None else str(path))
    with pytest.raises(ConfigurationError, match=message):
        draw(config)


def test_a_missing_file() -> None:
    with pytest.raises(ConfigurationError, match="cannot read --dataset-path nowhere: No such"):
        draw(DataConfig(dataset_name="custom", dataset_path="nowhere"))
