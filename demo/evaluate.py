"""Held-out prompts answered greedily by the shipped model: a table of exactly right answers."""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import openvino_genai as genai

from demo.corpus import CATEGORIES, draw
from demo.samples import Sample

MODEL = Path(__file__).resolve().parents[1] / "fastovms" / "demo_model"
STORY_PROMPTS = ("Tell me a short story.", "Write a story about a dragon.")
PLAIN_PROMPTS = ("Once upon a time", "Once upon a time there was a")


class Row(NamedTuple):
    """Right answers of a category, and the wrong ones as (prompt, wanted, got)."""

    category: str
    right: int
    total: int
    wrong: list[tuple[str, str, str]]


class Runner:
    """The shipped model in the pipeline that is the reference for exactness."""

    def __init__(self, model: Path) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = 1
        self._pipeline = genai.ContinuousBatchingPipeline(str(model), scheduler, "CPU")
        self._tokenizer = self._pipeline.get_tokenizer()

    def prompt(self, sample: Sample) -> str:
        rendered: str = self._tokenizer.apply_chat_template(
            list(sample.messages),
            add_generation_prompt=True,
            tools=list(sample.tools) or None,
            extra_context={"enable_thinking": sample.thinking},
        )
        return rendered

    def generate(
        self, prompts: Sequence[str], seed: int | None = None, limit: int = 300
    ) -> list[str]:
        """Greedy answers, or sampled at temperature 1 with `seed` and the prompt's index."""
        configs = []
        for index in range(len(prompts)):
            config = self._pipeline.get_config()
            config.max_new_tokens = limit
            config.apply_chat_template = False
            if seed is not None:
                config.do_sample, config.temperature, config.top_k = True, 1.0, 0
                config.rng_seed = seed + index
            configs.append(config)
        return [
            result.m_generation_ids[0] for result in self._pipeline.generate(list(prompts), configs)
        ]


def exact_row(runner: Runner, category: str, count: int, seed: int) -> Row:
    rng = random.Random(f"{seed}/{category}")
    samples = [draw(rng, category, unseen=True) for _ in range(count)]
    prompts = [runner.prompt(sample) for sample in samples]
    got = runner.generate(prompts)
    wrong = [
        (prompt, sample.target, text)
        for prompt, sample, text in zip(prompts, samples, got, strict=True)
        if text != sample.target
    ]
    return Row(category, count - len(wrong), count, wrong)


def variety_row(
    runner: Runner, category: str, prompts: Sequence[str], count: int, seed: int
) -> Row:
    """Sampled texts that come to their end and are like no earlier one."""
    texts = runner.generate([prompts[i % len(prompts)] for i in range(count)], seed)
    ended = [text for text in texts if text.endswith("The end.")]
    wrong = [("", "... The end.", text) for text in texts if not text.endswith("The end.")]
    return Row(category, len(set(ended)), count, wrong)


def evaluate(runner: Runner, count: int, seed: int) -> list[Row]:
    chat = [
        runner.prompt(Sample("", "story", ({"role": "user", "content": text},)))
        for text in STORY_PROMPTS
    ]
    rows = [
        exact_row(runner, category, count, seed)
        for category in CATEGORIES
        if category not in ("story", "plain text")
    ]
    rows.append(variety_row(runner, "story (distinct, ended)", chat, count, seed))
    rows.append(variety_row(runner, "plain text (distinct, ended)", PLAIN_PROMPTS, count, seed))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="?", default=MODEL)
    parser.add_argument("--count", type=int, default=100, help="prompts of each category")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--show", type=int, default=0, help="wrong answers shown of each category")
    args = parser.parse_args()
    rows = evaluate(Runner(args.model), args.count, args.seed)
    print("| category | right | of | share |\n|---|---:|---:|---:|")
    for row in rows:
        print(f"| {row.category} | {row.right} | {row.total} | {row.right / row.total:.0%} |")
    for row in rows:
        for prompt, wanted, got in row.wrong[: args.show]:
            print(f"\n--- {row.category}\n{prompt}\n--- wanted\n{wanted}\n--- got\n{got}")


if __name__ == "__main__":
    main()
