"""Replays real texts through the engine, without drafts and with drafts in turn.

    python -m bench.replay MODEL_DIR --data DIR

DIR caches the sources of the texts: releases of Python packages, which are downloaded, a tokenizer
trained on them, and chats of the demo model. Sessions run in order, so that drafts find what a
server would remember. Only the last part of a prompt is computed, so that the time is that of
decoding. Needs the extra `bench`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from itertools import islice, product
from pathlib import Path
from typing import Final, NamedTuple

from bench.common.arguments import model_directory
from bench.common.properties import add_property_flag, properties_of
from bench.common.report import machine, median, ratio, table
from bench.replay.forced_model import ForcedModel
from bench.replay.kinds import KINDS, Data
from bench.replay.player import Played, Player
from bench.replay.session import Session
from bench.replay.vocabulary import END_TOKEN_ID
from bench.steps import use_kernels
from fastovms.config import EngineConfig
from fastovms.engine.model.compilation import load_model
from fastovms.grammar.compiler import GrammarCompiler
from fastovms.params import SamplingParams

CACHE_TOKENS: Final = 32 * 1024
MAX_MODEL_LEN: Final = 8192

HEADER: Final = ("text", "streams", "drafts", "tok/s", "ratio", "right", "draft", "tokens a step")


class Side(NamedTuple):
    """A configuration of drafts."""

    config: EngineConfig
    params: SamplingParams


WITHOUT: Final = "without"
SIDES: Final = {
    WITHOUT: Side(EngineConfig(enable_prompt_lookup=False), SamplingParams(num_assistant_tokens=0)),
    "own text": Side(EngineConfig(suffix_index_tokens=0), SamplingParams()),
    "drafts": Side(EngineConfig(), SamplingParams()),
}


def measure(players: dict[str, Player], rounds: Iterable[list[Session]]) -> dict[str, list[Played]]:
    """Replays the rounds with each player in turn. The first round, in which players learn the
    costs of steps and the value of drafts, is not counted."""
    rounds = iter(rounds)
    first = next(rounds)
    for player in players.values():
        player.play(first)
    played: dict[str, list[Played]] = {name: [] for name in players}
    order = list(players)
    for sessions in rounds:
        for name in order:
            played[name].append(players[name].play(sessions))
        order = [*order[1:], order[0]]  # so that none has the better place
    return played


def rows_of(kind: str, num_streams: int, played: dict[str, list[Played]]) -> list[list[object]]:
    """Returns the table row of each side."""
    speeds = {name: [p.tokens_per_second for p in rounds] for name, rounds in played.items()}
    rows: list[list[object]] = []
    for name, rounds in played.items():
        total = sum(rounds, Played())
        drafted = total.num_draft_tokens
        rows.append(
            [
                kind,
                num_streams,
                name,
                median(speeds[name]),
                "" if name == WITHOUT else ratio(speeds[name], speeds[WITHOUT]),
                f"{total.num_accepted_tokens / drafted:.0%}" if drafted else "",
                drafted / total.num_drafts if drafted else "",
                total.num_generated_tokens / total.num_steps,
            ]
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m bench.replay",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model_dir", type=model_directory)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("-k", "--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("-s", "--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("-n", "--streams", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("-r", "--rounds", type=int, default=3)
    parser.add_argument("-g", "--output-tokens", type=int, default=512, help="at most, of a turn")
    parser.add_argument(
        "--decode-kernels", action="store_true", help="steps of up to 32 tokens by our own kernels"
    )
    add_property_flag(parser)
    chosen = parser.parse_args()
    data = Data.kept(chosen.data)
    paged = load_model(chosen.model_dir, properties=properties_of(chosen))
    if chosen.decode_kernels:
        use_kernels(paged)
    model = ForcedModel(paged)
    num_blocks = CACHE_TOKENS // model.block_size
    model.allocate_cache(num_blocks)
    grammars = GrammarCompiler(
        data.vocabulary.tokenizer_json, vocab_size=paged.vocab_size, eos_token_ids=[END_TOKEN_ID]
    )
    print(f"{machine()}\n{chosen.model_dir.name}, {chosen.rounds} rounds\n", flush=True)
    for kind, num_streams in product(chosen.kinds, chosen.streams):
        sessions = (session.cut(chosen.output_tokens) for session in KINDS[kind](data))
        rounds = (list(islice(sessions, num_streams)) for _ in range(chosen.rounds + 1))
        players = {
            name: Player(
                model,
                side.config,
                num_blocks=num_blocks,
                max_model_len=MAX_MODEL_LEN,
                grammars=grammars,
                params=side.params,
            )
            for name, side in SIDES.items()
            if name in {WITHOUT, *chosen.sides}
        }
        rows = rows_of(kind, num_streams, measure(players, rounds))
        print(table(HEADER, rows), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
