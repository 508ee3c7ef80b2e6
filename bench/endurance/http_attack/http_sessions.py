"""Builds the messages that each connection of the `bytes` test sends, and the responses that are
expected. A seed and an index determine both."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from bench.endurance.http_attack.mutations import mutate, splice, split

CASES: Final = Path(__file__).parents[3] / "tests" / "http" / "http_cases.json"
MARK: Final = b"smuggled"
"""A mark in the path of requests that must never be answered."""

REFUSALS: Final = (400, 501)
_MAX_SEED: Final = 8 * 1024


@dataclass(frozen=True, slots=True)
class Session:
    """The messages of one connection.

    Attributes:
        messages: each is a list of pieces, which are written separately. The next message is sent
            after the response to the one before, or after a pause without a response.
        statuses: the allowed statuses of the first responses, a set for each.
        is_exact: whether there must be no further responses and none with the mark.
        must_close: whether the server must close the connection after them.
    """

    messages: Sequence[Sequence[bytes]]
    statuses: Sequence[Sequence[int]] = ()
    is_exact: bool = False
    must_close: bool = False


def _request(method: str, target: str, *fields: str, body: bytes = b"") -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost", *fields, "", ""]
    return "\r\n".join(lines).encode() + body


def _post(target: str, body: object) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return _request("POST", target, f"Content-Length: {len(data)}", body=data)


def _chunked(target: str, body: object) -> bytes:
    data = json.dumps(body).encode()
    middle = len(data) // 2
    chunks = (data[:middle], data[middle:], b"")
    framed = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return _request("POST", target, "Transfer-Encoding: chunked", body=framed)


_ONE_TOKEN: Final = {"prompt": "a", "max_tokens": 1, "temperature": 0}
_VALID: Final[Sequence[tuple[bytes, int]]] = (
    (_request("GET", "/health"), 200),
    (_request("GET", "/ping?a=1&b=%20"), 200),
    (_request("GET", "/v1/models"), 200),
    (_request("GET", "/v3/models", "X-Request-Id: one", "Accept: */*"), 200),
    (_request("GET", "http://localhost/version"), 200),
    (_request("GET", "/nowhere"), 404),
    (_request("OPTIONS", "*"), 204),
    (_request("OPTIONS", "/v1/completions"), 204),
    (_request("DELETE", "/v1/models"), 405),
    (_request("GET", "/v1/responses/resp_none"), 404),
    (_post("/tokenize", {"prompt": "Once upon a time"}), 200),
    (_chunked("/tokenize", {"prompt": "Once upon a time"}), 200),
    (_post("/detokenize", {"tokens": [5, 6, 7]}), 200),
    (_post("/v3/tokenize", {"model": "demo_model", "text": ["a", "b"]}), 200),
    (_post("/v1/completions", b'{"prompt": 5}'), 400),
    (_post("/v1/chat/completions", b"{"), 400),
    (_post("/v3/completions", b"[]"), 412),
)
_ONE_MESSAGE: Final = {
    "model": "demo_model",
    "messages": [{"role": "user", "content": "a"}],
    "max_tokens": 1,
}
_GENERATING: Final[Sequence[tuple[bytes, int]]] = (
    (_post("/v1/completions", _ONE_TOKEN), 200),
    (_chunked("/v1/completions", {**_ONE_TOKEN, "stream": True}), 200),
    (_post("/v3/chat/completions", _ONE_MESSAGE), 200),
)

_INNER: Final = b"GET /v1/models/%b HTTP/1.1\r\nHost: localhost\r\n\r\n" % MARK
_HIDING: Final = (_INNER, b"0\r\n\r\n" + _INNER, b"5\r\nhello\r\n0\r\n\r\n" + _INNER)
_AMBIGUOUS: Final = (
    *(
        "Content-Length: 5|Transfer-Encoding: chunked",
        "Transfer-Encoding: chunked|Content-Length: 5",
    ),
    *("Content-Length: 5|Content-Length: 5", "Content-Length: 0|Content-Length: 44"),
    *("Content-Length: 5, 5", "Content-Length: +5", "Content-Length: -1", "Content-Length: 0x5"),
    *("Content-Length: 1_0", "Content-Length: 5 5", "Content-Length:", "Content-Length: 5,"),
    *("Content-Length: 99999999999999999999999", "Content-Length : 5", "Content-Length\t: 5"),
    *("Transfer-Encoding: chunked, chunked", "Transfer-Encoding: gzip, chunked"),
    *(
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: chunked;q=1",
        "Transfer-Encoding: identity",
    ),
    *("Transfer-Encoding:", "Transfer-Encoding: chunked\x0b", "Transfer-Encoding:\x0bchunked"),
    *("Transfer-Encoding : chunked", "X: y\nTransfer-Encoding: chunked", "X: y\rContent-Length: 5"),
    *("X: y|Transfer-Encoding:\r\n chunked", " Transfer-Encoding: chunked", "Host: other"),
    *("Transfer-Encoding: gzip|Transfer-Encoding: chunked", "Transfer-Encoding: cow"),
    *("Transfer-Encoding: chunked|Transfer-Encoding: identity", "X\x00: y", "X: a\x00b"),
)
"""Header fields after which two servers may disagree about the body. `|` stands for the end of a
line."""


def load_seeds(path: Path = CASES) -> list[bytes]:
    """Returns the messages to mutate: the sample cases and the valid requests. HEAD requests are
    omitted, because their responses cannot be framed without the request."""
    seeds = [data for data, _ in _VALID] * 2 + [data for data, _ in _GENERATING]
    for case in json.loads(path.read_text())["cases"]:
        data = _bytes_of(case)
        if data and b"HEAD" not in data:
            seeds.append(data[:_MAX_SEED])
    return seeds


def _bytes_of(case: dict[str, Any]) -> bytes:
    if "raw" in case:
        data: bytes = ast.literal_eval(case["raw"])
        return data
    if "parts" in case:
        return b"".join(ast.literal_eval(text) * count for text, count in case["parts"])
    pieces = (piece for piece, _ in case["send"] if piece != "SHUT_WR")
    return b"".join(ast.literal_eval(piece) for piece in pieces)


class Sessions:
    """Builds the session for an index."""

    def __init__(self, seed: int, seeds: Sequence[bytes]) -> None:
        self._seed = seed
        self._seeds = seeds

    def make(self, index: int) -> Session:
        rng = Random(self._seed << 40 | index)
        kinds: Sequence[Callable[[Random], Session]] = (
            *(self._mutated, self._mutated, self._mutated, self._mutated, self._mutated),
            *(self._pipeline, self._pipeline_and_mutant, self._pipeline_and_mutant),
            self._ambiguous,
        )
        return rng.choice(kinds)(rng)

    def _mutated(self, rng: Random) -> Session:
        """Returns several mutated messages for one connection, where the rest of one precedes the
        next."""
        messages = [split(self._mutant(rng), rng) for _ in range(rng.randrange(1, 13))]
        return Session([pieces for pieces in messages if pieces])

    def _mutant(self, rng: Random) -> bytes:
        data = rng.choice(self._seeds)
        if rng.random() < 0.3:
            data = splice(data, rng.choice(self._seeds), rng)
        return mutate(data, rng)

    def _pipeline(self, rng: Random) -> Session:
        data, statuses = _some_valid(rng, 10)
        return Session([split(data, rng)], statuses, is_exact=True)

    def _pipeline_and_mutant(self, rng: Random) -> Session:
        data, statuses = _some_valid(rng, 4)
        return Session([split(data + self._mutant(rng), rng)], statuses)

    def _ambiguous(self, rng: Random) -> Session:
        """Returns a request with two interpretations, one of which hides another request in its
        body."""
        fields = rng.choice(_AMBIGUOUS).split("|")
        if rng.random() < 0.3:
            fields = [field if ":" not in field else _recased(field, rng) for field in fields]
        more = [f"X-{number}: {number}" for number in range(rng.randrange(4))]
        fields = [*more, *fields] if rng.random() < 0.5 else [*fields, *more]
        if fields[0].startswith(" "):
            fields.insert(0, "X-First: 1")
        target = rng.choice(("/tokenize", "/v1/completions", "/health", "/v3/responses"))
        request = "\r\n".join([f"POST {target} HTTP/1.1", "Host: localhost", *fields, "", ""])
        data = request.encode("latin-1") + rng.choice(_HIDING)
        before, statuses = _some_valid(rng, 2) if rng.random() < 0.3 else (b"", [])
        return Session(
            [split(before + data, rng)], [*statuses, REFUSALS], is_exact=True, must_close=True
        )


def _some_valid(rng: Random, most: int) -> tuple[bytes, list[Sequence[int]]]:
    table = _GENERATING if rng.random() < 0.02 else _VALID
    chosen = [rng.choice(table) for _ in range(rng.randrange(1, most + 1))]
    return b"".join(data for data, _ in chosen), [(status,) for _, status in chosen]


def _recased(field: str, rng: Random) -> str:
    name, _, value = field.partition(":")
    return f"{''.join(rng.choice((c.upper(), c.lower())) for c in name)}:{value}"
