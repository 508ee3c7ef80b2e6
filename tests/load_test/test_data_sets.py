from __future__ import annotations

import json
import os
import random
import subprocess
import sys
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


def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    prompt = "a\u2028b\u2029c\x85d"
    line = json.dumps({"prompt": prompt, "output_tokens": 3}, ensure_ascii=False)
    path.write_bytes(b"\xef\xbb\xbf" + f"{line}\r\n{line}".encode())
    assert draw(DataConfig(dataset_name="custom", dataset_path=str(path)), 2) == [(prompt, 3)] * 2


def test_the_locale_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes('{"prompt": "Grüße"}'.encode())
    code = f"""
import random
from fastovms.load_test.data_sets import draw_samples
from fastovms.load_test.load_config import DataConfig
config = DataConfig(dataset_name="custom", dataset_path={str(path)!r})
print(ascii(draw_samples(config, 1, random.Random(0), as_text=True)[0].prompt))
"""
    environ = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-X", "utf8=0", "-c", code]
    assert subprocess.check_output(command, env=environ, text=True) == "'Gr\\xfc\\xdfe'\n"


@pytest.mark.parametrize("name", ["custom", "sharegpt"])
def test_half_of_a_character_is_replaced(tmp_path: Path, name: str) -> None:
    path = tmp_path / "file"
    content = {
        "custom": {"prompt": "a\ud83d!\U0001f600"},
        "sharegpt": [{"conversations": [{"value": "a\ud83d!\U0001f600"}, {"value": "b"}]}],
    }
    path.write_text(json.dumps(content[name]))
    [sample] = draw(DataConfig(dataset_name=name, dataset_path=str(path)), 1)
    assert sample.prompt == "a\ufffd!\U0001f600"


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
        ("custom", '{"prompt": "a", "output_tokens": -5}', "an integer of at least 1"),
        ("custom", '{"prompt": "a", "output_tokens": 0}', "an integer of at least 1"),
        ("custom", '{"prompt": "a", "output_tokens": true}', "an integer of at least 1"),
        ("custom", '{"prompt": "a", "output_tokens": 1.5}', "an integer of at least 1"),
        ("sharegpt", '[{"conversations": [{"value": 5}, {"value": "a"}]}]', "a JSON list"),
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
