"""Plays the texts of `bench.replay` on llama.cpp's server, without drafts and by n-grams.

    python -m bench.replay.llama_server --data DIR --server PROGRAM --gguf FILE

PROGRAM is a llama-server with `bench/replay/llama_forced.patch`: it says what it is told, whatever
the model finds likeliest. FILE has the tokenizer in DIR, as
`python -m bench.gguf_models SHAPE TYPE FILE --tokenizer DIR/tokenizer.json` writes it.
Prompts are computed once and kept in DIR, `--prepare` does nothing else: the time is that of
decoding, one request at a time, without HTTP. The servers of all settings play each round in turn.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

from bench.common.process import answering_process, free_port
from bench.common.report import machine, median, ratio, table
from bench.replay.__main__ import MAX_MODEL_LEN
from bench.replay.kinds import KINDS, Data
from bench.replay.session import Session, Turn

WITHOUT: Final = "without"
"""The name of the setting that the others are compared with."""

SETTINGS: Final = {
    WITHOUT: "",
    "simple-12-48": "--spec-type ngram-simple",
    "simple-4-16": "--spec-type ngram-simple --spec-ngram-simple-size-n 4"
    " --spec-ngram-simple-size-m 16",
    "simple-3-8": "--spec-type ngram-simple --spec-ngram-simple-size-n 3"
    " --spec-ngram-simple-size-m 8",
    "map-k-4-16": "--spec-type ngram-map-k --spec-ngram-map-k-size-n 4"
    " --spec-ngram-map-k-size-m 16",
    "map-k4v-8-8": "--spec-type ngram-map-k4v --spec-ngram-map-k4v-size-n 8"
    " --spec-ngram-map-k4v-size-m 8 --spec-ngram-map-k4v-min-hits 2",
    "map-k4v-4-16": "--spec-type ngram-map-k4v --spec-ngram-map-k4v-size-n 4"
    " --spec-ngram-map-k4v-size-m 16",
    "mod-24-48-64": "--spec-type ngram-mod",
    "mod-16-4-32": "--spec-type ngram-mod --spec-ngram-mod-n-match 16 --spec-ngram-mod-n-min 4"
    " --spec-ngram-mod-n-max 32",
    "mod-6-2-12": "--spec-type ngram-mod --spec-ngram-mod-n-match 6 --spec-ngram-mod-n-min 2"
    " --spec-ngram-mod-n-max 12",
    "mod-8-1-24": "--spec-type ngram-mod --spec-ngram-mod-n-match 8 --spec-ngram-mod-n-min 1"
    " --spec-ngram-mod-n-max 24",
    "mod-4-1-8": "--spec-type ngram-mod --spec-ngram-mod-n-match 4 --spec-ngram-mod-n-min 1"
    " --spec-ngram-mod-n-max 8",
    "cache": "--spec-type ngram-cache",
}
"""Flags of the server by the kind of n-grams, the tokens that are looked up, and those that are
drafted; the first of a kind has llama.cpp's defaults, or what its documentation shows."""

PREPARING: Final = {WITHOUT: "--threads 1"}
"""Threads that wait for each other are slow beside other programs."""

HEADER: Final = ("text", "n-grams", "tok/s", "ratio", "right", "drafted, of the text")

_TIMEOUT: Final = 600.0


@dataclass(frozen=True)
class Played:
    """What some answers came to."""

    seconds: float = 0.0
    num_tokens: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0

    @classmethod
    def of(cls, timings: dict[str, Any]) -> Played:
        """Reads what llama-server says of a request, of whose prompt the last token was computed.

        Raises:
            RuntimeError: more of the prompt was.
        """
        if timings["prompt_n"] != 1:
            raise RuntimeError(f"{timings['prompt_n']} tokens of a kept prompt were computed")
        return cls(
            (timings["prompt_ms"] + timings["predicted_ms"]) / 1000,
            timings["predicted_n"],
            timings.get("draft_n", 0),
            timings.get("draft_n_accepted", 0),
        )

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.seconds

    def __add__(self, other: Played) -> Played:
        return Played(
            self.seconds + other.seconds,
            self.num_tokens + other.num_tokens,
            self.num_draft_tokens + other.num_draft_tokens,
            self.num_accepted_tokens + other.num_accepted_tokens,
        )


class LlamaServer:
    """A patched llama-server with one slot, whose KV cache is kept for each prompt."""

    def __init__(self, url: str, forced: Path, states: Path) -> None:
        self._url = url
        self._forced = forced
        self._states = states

    @classmethod
    @contextmanager
    def running(
        cls, program: Path, gguf: Path, flags: str, directory: Path, states: Path
    ) -> Iterator[LlamaServer]:
        """
        Args:
            directory: an empty one, for what is said.
            states: where prompts' KV caches are kept.

        Raises:
            SystemExit: it ended or did not answer in time.
        """
        forced, port = directory / "forced", free_port()
        states.mkdir(parents=True, exist_ok=True)
        command = [str(program), "--model", str(gguf), "--host", "127.0.0.1", "--port", str(port)]
        command += ["--ctx-size", str(MAX_MODEL_LEN), "--parallel", "1", "--cache-ram", "0"]
        command += ["--slot-save-path", f"{states}/", "--log-disable", *flags.split()]
        url = f"http://127.0.0.1:{port}"
        with answering_process(command, f"{url}/health", {"LLAMA_FORCED_TOKENS": str(forced)}):
            yield cls(url, forced, states)

    def prepare(self, turn: Turn) -> None:
        """Has the slot hold the KV cache of a turn's prompt."""
        token_ids = turn.prompt
        name = hashlib.sha256(json.dumps(token_ids).encode()).hexdigest()[:32]
        kept = self._states / name
        if not kept.exists():
            self._forced.write_text("")
            self._post("/completion", {"prompt": token_ids, "n_predict": 0, "cache_prompt": True})
            self._post("/slots/0?action=save", {"filename": f"{name}.new"})
            (self._states / f"{name}.new").rename(kept)
        self._post("/slots/0?action=restore", {"filename": name})

    def play(self, session: Session) -> Played:
        """Raises RuntimeError: an answer was not the known one."""
        total = Played()
        for turn in session.turns:
            self.prepare(turn)
            self._forced.write_text(" ".join(map(str, turn.answer)))
            body = {
                "prompt": turn.prompt,
                "n_predict": len(turn.answer),
                "temperature": 0,
                "cache_prompt": True,
                "return_tokens": True,
            }
            answer = self._post("/completion", body)
            if answer["tokens"] != list(turn.answer):
                raise RuntimeError(f"another text was said: {answer['tokens']}")
            total += Played.of(answer["timings"])
        return total

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = Request(
            self._url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urlopen(request, timeout=_TIMEOUT) as response:
            answer: dict[str, Any] = json.load(response)
        return answer


def measure(
    servers: dict[str, LlamaServer], sessions: Sequence[Session]
) -> dict[str, list[Played]]:
    """Plays each session with each server in turn. The first one is for them to learn from, and is
    left out."""
    for server in servers.values():
        server.play(sessions[0])
    played: dict[str, list[Played]] = {name: [] for name in servers}
    order = list(servers)
    for session in sessions[1:]:
        for name in order:
            played[name].append(servers[name].play(session))
        order = [*order[1:], order[0]]  # so that none has the better place
    return played


def rows_of(kind: str, played: dict[str, list[Played]]) -> list[list[object]]:
    """Returns a row of the table for each setting, the fastest first after the one without."""
    speeds = {name: [p.tokens_per_second for p in rounds] for name, rounds in played.items()}
    rows: list[list[object]] = []
    for name in sorted(speeds, key=lambda name: (name != WITHOUT, -median(speeds[name]))):
        total = sum(played[name], Played())
        drafted = total.num_draft_tokens
        rows.append(
            [
                kind,
                name,
                median(speeds[name]),
                "" if name == WITHOUT else ratio(speeds[name], speeds[WITHOUT]),
                f"{total.num_accepted_tokens / drafted:.0%}" if drafted else "",
                f"{total.num_accepted_tokens / total.num_tokens:.0%}" if drafted else "",
            ]
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m bench.replay.llama_server",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = [kind for kind in KINDS if not kind.endswith("-grammar")]
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--server", type=Path, required=True, metavar="PROGRAM")
    parser.add_argument("--gguf", type=Path, required=True, metavar="FILE")
    parser.add_argument("-k", "--kinds", nargs="+", choices=kinds, default=kinds)
    parser.add_argument("-s", "--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("-r", "--rounds", type=int, default=3)
    parser.add_argument("-g", "--output-tokens", type=int, default=512, help="at most, of a turn")
    parser.add_argument("--prepare", action="store_true", help="compute and keep prompts")
    chosen = parser.parse_args()
    data = Data.kept(chosen.data)
    sessions = {
        kind: [
            session.cut(chosen.output_tokens)
            for session in islice(KINDS[kind](data), chosen.rounds + 1)
        ]
        for kind in chosen.kinds
    }
    names = {WITHOUT} if chosen.prepare else {WITHOUT, *chosen.settings}
    states = chosen.data / "llama-states" / chosen.gguf.stem
    print(f"{machine()}\n{chosen.gguf.name}, {chosen.rounds} rounds\n", flush=True)
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(
                LlamaServer.running(
                    chosen.server,
                    chosen.gguf,
                    flags,
                    Path(stack.enter_context(tempfile.TemporaryDirectory())),
                    states,
                )
            )
            for name, flags in (PREPARING if chosen.prepare else SETTINGS).items()
            if name in names
        }
        for kind in chosen.kinds:
            if chosen.prepare:
                for session in sessions[kind]:
                    for turn in session.turns:
                        servers[WITHOUT].prepare(turn)
                continue
            rows = rows_of(kind, measure(servers, sessions[kind]))
            print(table(HEADER, rows), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
