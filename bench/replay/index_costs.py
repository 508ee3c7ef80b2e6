"""Times what the suffix index takes of each token: to add it, to guess on, and to learn from that.

    python -m bench.replay.index_costs --data DIR

The texts are the edits of `bench.replay`, whose directory DIR is. Prompts are added at once, and
answers a token at a time, as in steps without drafts, which is what costs most. The time is that of
the thread, so that others' work on the machine counts little.
"""

from __future__ import annotations

import argparse
import time
from array import array
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from bench.common.report import machine, table
from bench.replay.kinds import KINDS, Data
from bench.replay.session import Turn
from fastovms.config import EngineConfig
from fastovms.params import MAX_DRAFT_TOKENS
from fastovms.parts.drafts.suffix_index import SUFFIX_FUNCTIONS, SuffixIndex

PARTS: Final = ("add a prompt", "add an answer", "guess", "learn")


def costs(turns: Sequence[Turn], num_entries: int) -> dict[str, float]:
    """Returns microseconds a token by `PARTS`, of which the first is a prompt's token."""
    index = SuffixIndex(num_entries)
    seconds = dict.fromkeys(PARTS, 0.0)
    for turn in turns:
        text = index.new_text("everybody")
        token_ids = array("q", turn.prompt)
        start = time.thread_time()
        index.extend(text, token_ids, len(turn.prompt))
        seconds["add a prompt"] += time.thread_time() - start
        for token_id, following in zip(turn.answer, [*turn.answer[1:], 0], strict=True):
            token_ids.append(token_id)
            said = array("q", [following])
            times = [time.thread_time()]
            index.extend(text, token_ids, len(turn.prompt))
            times.append(time.thread_time())
            guess = index.guess(text, token_ids, MAX_DRAFT_TOKENS)
            times.append(time.thread_time())
            index.learn(text, guess, said)
            times.append(time.thread_time())
            for name, begin, end in zip(PARTS[1:], times, times[1:], strict=False):
                seconds[name] += end - begin
    num_prompt_tokens = sum(len(turn.prompt) for turn in turns)
    num_answer_tokens = sum(len(turn.answer) for turn in turns)
    return {
        name: 1e6 * of / (num_prompt_tokens if name == PARTS[0] else num_answer_tokens)
        for name, of in seconds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m bench.replay.index_costs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("-n", "--sessions", type=int, default=200)
    chosen = parser.parse_args()
    sessions = islice(KINDS["edits"](Data.kept(chosen.data)), chosen.sessions)
    turns = [turn for session in sessions for turn in session.turns]
    SUFFIX_FUNCTIONS.load()
    found = costs(turns, EngineConfig().suffix_index_tokens)
    print(f"{machine()}\n")
    print(table(("part", "us a token"), found.items()))


if __name__ == "__main__":
    main()
