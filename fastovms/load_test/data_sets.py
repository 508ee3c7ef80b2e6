"""Makes the prompts of a load test, and reads them from files."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from fastovms.errors import ConfigurationError
from fastovms.load_test.load_config import DEFAULT_OUTPUT_LEN, DataConfig

RANDOM_TOKEN_IDS: Final = range(5, 400)
"""Ids that every vocabulary has. Nearly always they are of single bytes and frequent syllables."""

_WORDS: Final = (
    "the of and to in is was for on that with as are by at from this have not but had his they her "
    "which or we an there been one all can more has their said when would who will no if out so up "
    "what about them then she into him could some new only these its time other after over also "
    "first now two very even most may such like me just our people any how before where your well "
    "back years made between own under last old good work water life way day hand part place home"
)
"""Words that are one token each in nearly every vocabulary."""


class Sample(NamedTuple):
    """One request of a load.

    Attributes:
        prompt: a text, or token ids.
        output_len: the most tokens of its answer.
    """

    prompt: str | list[int]
    output_len: int


def draw_samples(
    config: DataConfig, number: int, rng: random.Random, *, as_text: bool
) -> list[Sample]:
    """Returns the requests of one round.

    Args:
        as_text: prompts are words, about one a token, where else they would be token ids: chats
            take text only.

    Raises:
        ConfigurationError: there is no such file, or it is no such data set.
    """
    match config.dataset_name:
        case "random":
            return [_random_sample(config, rng, as_text=as_text) for _ in range(number)]
        case "prefix_repetition":
            return _repeated_prefixes(config, number, rng, as_text=as_text)
    samples = list(_of_file(config))
    if not samples:
        raise ConfigurationError(f"--dataset-path {config.dataset_path} has no prompt")
    if len(samples) < number:
        return [samples[i % len(samples)] for i in range(number)]
    return rng.sample(samples, number)


# Prompts at random


def _random_sample(config: DataConfig, rng: random.Random, *, as_text: bool) -> Sample:
    ratio = config.random_range_ratio
    return Sample(
        _random_prompt(_vary(config.random_input_len, ratio, rng), rng, as_text=as_text),
        _vary(config.random_output_len, ratio, rng),
    )


def _vary(length: int, ratio: float, rng: random.Random) -> int:
    """Returns a length within the share around it, as vLLM draws it: evenly."""
    return max(1, rng.randint(int(length * (1 - ratio)), int(length * (1 + ratio))))


def _random_prompt(length: int, rng: random.Random, *, as_text: bool) -> str | list[int]:
    if as_text:
        return " ".join(rng.choices(_WORDS.split(), k=length))
    return rng.choices(RANDOM_TOKEN_IDS, k=length)


def _repeated_prefixes(
    config: DataConfig, number: int, rng: random.Random, *, as_text: bool
) -> list[Sample]:
    """Each prefix gets the same number of suffixes, or one less; the order is random."""
    lengths = config.prefix_repetition_prefix_len, config.prefix_repetition_suffix_len
    num_prefixes = config.prefix_repetition_num_prefixes
    prefixes = [_random_prompt(lengths[0], rng, as_text=as_text) for _ in range(num_prefixes)]
    prompts: list[str | list[int]] = []
    for i in range(number):
        prefix, suffix = (
            prefixes[i % num_prefixes],
            _random_prompt(lengths[1], rng, as_text=as_text),
        )
        if isinstance(prefix, str):
            prompts.append(f"{prefix} {suffix}")
        else:
            prompts.append([*prefix, *map(int, suffix)])
    rng.shuffle(prompts)
    return [Sample(prompt, config.prefix_repetition_output_len) for prompt in prompts]


# Files


def _of_file(config: DataConfig) -> Iterator[Sample]:
    if config.dataset_path is None:
        raise ConfigurationError(f"--dataset-name {config.dataset_name} needs --dataset-path")
    path = Path(config.dataset_path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise ConfigurationError(f"cannot read --dataset-path {path}: {reason}") from None
    try:
        if config.dataset_name == "sharegpt":
            yield from _sharegpt(json.loads(text), config)
        else:
            # JSON may have the other characters that end lines for Python within its texts.
            for line in filter(str.strip, text.split("\n")):
                yield _custom(json.loads(line), config)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        forms = {
            "sharegpt": 'a JSON list of {"conversations": [{"value": "..."}, ...]}',
            "custom": 'lines of JSON such as {"prompt": "...", "output_tokens": 100}',
        }
        raise ConfigurationError(
            f"--dataset-path {path} must have {forms[config.dataset_name]}: {error!r}"
        ) from None


def _sharegpt(conversations: list[dict[str, Any]], config: DataConfig) -> Iterator[Sample]:
    """Yields the first turn of each conversation, whose answer's length is about that of the second
    one: four characters a token."""
    for conversation in conversations:
        turns = [turn["value"] for turn in conversation["conversations"][:2]]
        if len(turns) == 2 and all(turns):
            yield Sample(_whole(turns[0]), config.output_len or max(1, len(turns[1]) // 4))


def _custom(line: dict[str, Any], config: DataConfig) -> Sample:
    prompt, length = line["prompt"], line.get("output_tokens")
    is_length = length is None or (type(length) is int and length >= 1)  # True is an int, too
    if not isinstance(prompt, str) or not is_length:
        raise TypeError("prompt must be text, output_tokens an integer of at least 1")
    return Sample(_whole(prompt), config.output_len or length or DEFAULT_OUTPUT_LEN)


def _whole(text: str) -> str:
    """Returns the text with a replacement for each lone surrogate, which JSON may escape, and which
    no request can have."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
