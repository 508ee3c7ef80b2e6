"""Clients that ask encoder models, in all dialects, and what an answer to them must be."""

from __future__ import annotations

import random
from base64 import b64decode
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastovms.config import EncoderConfig
from fastovms.params import Task
from tests.api.encoder_api import CLS, SEP
from tests.simulation.client import Answer
from tests.simulation.encoders import ENCODERS, MAX_LENGTH, row_of
from tests.simulation.model import NAN, STALL
from tests.simulation.network import Line
from tests.simulation.workload import Action, batch_of, make_text

EMBEDDINGS: Final = ("/v1/embeddings", "/v3/embeddings", "/v3/v1/embeddings")
RERANK: Final = ("/v1/rerank", "/rerank", "/v2/rerank", "/v3/rerank")
SCORE: Final = ("/v1/score", "/score", "/v3/score")
OLLAMA: Final = ("/api/embed", "/api/embeddings")

_SIDES: Final = (("text_1", "text_2"), ("queries", "documents"), ("data_1", "data_2"))
_WIDTH: Final = 8

_SHORT: Final = (1, 2, 5, 6, 12, 25)
_ANY: Final = (*_SHORT, 58, 62, 70, 150)
"""Lengths of texts that always fit into the model, and of all kinds of texts."""


def make_encoding(chance: random.Random, number: int, at: float, names: Sequence[str]) -> Action:
    """Returns an action that asks one of the encoders with these names."""
    name = chance.choice(names)
    kinds = [RERANK, SCORE]
    if ENCODERS[name].task is Task.EMBEDDINGS:
        kinds = [EMBEDDINGS, EMBEDDINGS, EMBEDDINGS, OLLAMA, RERANK, SCORE]
    path = chance.choice(chance.choice(kinds))
    if chance.random() < 0.04:  # a model of another kind
        name, path = chance.choice((("sim", "/v1/embeddings"), (name, "/v1/completions")))
    make = {"/v1/completions": _prompt, "/api/embed": _of_ollama, "/api/embeddings": _prompt}
    made = make.get(path, _input if path in EMBEDDINGS else _pairs)
    sizes = chance.choice((_SHORT, _SHORT, _SHORT, _ANY))
    fields = (_documents if path in RERANK else made)(chance, sizes)
    leaves = chance.choice((*6 * ("",), "reset", "close", "half-close"))
    return Action(
        number,
        at,
        path,
        fields=fields,
        leaves=leaves,
        after_seconds=chance.choice((0.0, 0.001, 0.02, 0.2)),
        sip=(chance.choice((10, 1000)), 0.01) if chance.random() < 0.05 else None,
        repeats=0 if leaves else chance.choice((0, 0, 1, 3)),
        pipelines=chance.random() < 0.3,
        drip=(chance.choice((7, 50)), 0.01) if chance.random() < 0.05 else None,
        model=name,
        line=Line.choose(chance),
    )


def make_encoding_batch(chance: random.Random, number: int) -> Action:
    """Returns an action that runs a batch of requests for vectors."""
    lines = tuple(
        Action(line, 0.0, EMBEDDINGS[0], fields=_input(chance, _SHORT), model="vectors")
        for line in range(chance.choice((1, 5, 12)))
    )
    return batch_of(chance, number, "vectors", lines)


def _text(chance: random.Random, sizes: Sequence[int]) -> str:
    text = make_text(chance, chance.choice(sizes))
    if chance.random() < 0.02:
        text = chr(chance.choice((NAN, STALL))) + text
    return text


def _texts(chance: random.Random, sizes: Sequence[int]) -> list[str]:
    return [_text(chance, sizes) for _ in range(chance.choice((1, 2, 5, 20)))]


def _truncation(chance: random.Random) -> dict[str, Any]:
    return {"truncate_prompt_tokens": chance.choice((-1, 10, 40))} if chance.random() < 0.6 else {}


def _input(chance: random.Random, sizes: Sequence[int]) -> dict[str, Any]:
    ids = [list(text.encode()) for text in _texts(chance, sizes)]
    fields: dict[str, Any] = {
        "input": chance.choice(
            (_text(chance, sizes), _texts(chance, sizes), _texts(chance, sizes), ids[0], ids)
        )
    }
    fields |= _truncation(chance)
    if "truncate_prompt_tokens" in fields and chance.random() < 0.3:
        fields["truncation_side"] = "left"
    if chance.random() < 0.3:
        fields["encoding_format"] = chance.choice(("base64", "float"))
    if chance.random() < 0.2:
        fields["dimensions"] = chance.choice((1, 5, _WIDTH))
    if chance.random() < 0.2:
        fields["add_special_tokens"] = False
    if chance.random() < 0.2:
        fields["use_activation"] = chance.random() < 0.5
    return fields


def _of_ollama(chance: random.Random, sizes: Sequence[int]) -> dict[str, Any]:
    fields: dict[str, Any] = {"input": chance.choice((_text(chance, sizes), _texts(chance, sizes)))}
    if chance.random() < 0.3:
        fields["truncate"] = chance.random() < 0.5
    if chance.random() < 0.2:
        fields["dimensions"] = chance.choice((1, 5, _WIDTH))
    return fields


def _prompt(chance: random.Random, sizes: Sequence[int]) -> dict[str, Any]:
    return {"prompt": _text(chance, sizes)}


def _documents(chance: random.Random, sizes: Sequence[int]) -> dict[str, Any]:
    given: list[Any] = _texts(chance, sizes)
    if chance.random() < 0.3:
        given = [{"text": text} for text in given]
    fields: dict[str, Any] = {"query": _text(chance, sizes)[:80], "documents": given} | _truncation(
        chance
    )
    if chance.random() < 0.3:
        fields["top_n"] = chance.choice((0, 1, 3, 100))
    if chance.random() < 0.3:
        fields["return_documents"] = chance.random() < 0.5
    if chance.random() < 0.3:
        fields["max_chunks_per_doc"] = chance.choice((1, 2, 10))
    if chance.random() < 0.1:
        fields["max_tokens_per_doc"] = chance.choice((0, 5, 30))
    if chance.random() < 0.2:
        fields["use_activation"] = False
    return fields


def _pairs(chance: random.Random, sizes: Sequence[int]) -> dict[str, Any]:
    first, second = chance.choice(_SIDES)
    texts = _texts(chance, sizes)
    queries = (
        [_text(chance, sizes) for _ in texts] if chance.random() < 0.5 else _text(chance, sizes)
    )
    fields = {first: queries, second: texts[0] if len(texts) == 1 else texts}
    return fields | _truncation(chance)


# What an answer must be.


class _Refused(Exception):
    """The request must be refused."""


class _Given(NamedTuple):
    """The tokens of a text, or of a pair of which the second text has so many at the end."""

    ids: list[int]
    num_second: int = 0


def _bytes(text: str) -> list[int]:
    return list(text.encode())


def _cut(ids: list[int], most: int, *, truncates: bool, keeps_end: bool = False) -> list[int]:
    if len(ids) <= most:
        return ids
    if not truncates:
        raise _Refused
    return ids[len(ids) - most :] if keeps_end else ids[:most]


class Encoding:
    """What the request of an action gets.

    Args:
        weights: the name of the weights of its model.

    Attributes:
        num_tokens: of an answer that was right; 0 = there was none.
    """

    def __init__(self, action: Action, config: EncoderConfig, weights: str) -> None:
        self._action = action
        self._fields = action.fields
        self._config = config
        self._weights = weights
        self._path = action.api
        self.num_tokens = 0

    def faults(self, answer: Answer) -> list[str]:
        """Returns what is wrong with a whole answer."""
        try:
            given, owners = self._given()
        except _Refused:
            is_right = answer.status == 400
            return [] if is_right else [f"status {answer.status} of a request that cannot run"]
        if any(NAN in text.ids for text in given):
            is_right = answer.status == 500 and b"not numbers" in answer.body
            return [] if is_right else [f"status {answer.status} where rows are NaN"]
        if answer.status != 200:
            return [f"status {answer.status}: {answer.body[:200]!r}"]
        num_tokens = sum(len(text.ids) for text in given)
        faults = self._faults(answer.json, given, owners, num_tokens)
        self.num_tokens = 0 if faults else num_tokens
        return faults

    def _faults(
        self, body: Any, given: Sequence[_Given], owners: list[int], num_tokens: int
    ) -> list[str]:
        rows = np.array([row_of(self._weights, *text) for text in given])
        if self._path in OLLAMA:
            return self._faults_of_ollama(body, self._vectors(rows), num_tokens)
        if self._path in EMBEDDINGS:
            return self._faults_of_vectors(body, self._vectors(rows), num_tokens)
        scores = self._scores(rows, owners)
        if self._path in SCORE:
            return self._faults_of_scores(body, scores, num_tokens)
        return self._faults_of_ranks(body, scores, num_tokens)

    # The tokens

    def _given(self) -> tuple[list[_Given], list[int]]:
        """Returns the tokens of each text that the model reads, and the pair that each is of."""
        task = ENCODERS[self._action.model].task if self._action.model in ENCODERS else None
        if task is None or self._path == "/v1/completions":
            raise _Refused
        if self._path in OLLAMA:
            return self._given_to_ollama()
        if self._path in EMBEDDINGS:
            return self._given_input()
        return self._given_alike() if task is Task.EMBEDDINGS else self._given_pairs()

    def _enclosed(self, ids: list[int]) -> _Given:
        return _Given([CLS, *ids, SEP])

    def _given_to_ollama(self) -> tuple[list[_Given], list[int]]:
        fields = self._fields
        texts = fields.get("input") or fields["prompt"]
        truncates = fields.get("truncate", True)
        found = []
        for text in [texts] if isinstance(texts, str) else texts:
            ids = _bytes(self._config.document_instruction + text)
            found.append(self._enclosed(_cut(ids, MAX_LENGTH - 2, truncates=truncates)))
        return found, []

    def _given_input(self) -> tuple[list[_Given], list[int]]:
        fields = self._fields
        texts = fields["input"]
        if isinstance(texts, str) or isinstance(texts[0], int):
            texts = [texts]
        added = 0 if fields.get("add_special_tokens") is False else 2
        kept = fields.get("truncate_prompt_tokens")
        most = (MAX_LENGTH if kept in (None, -1) else kept) - added
        truncates = self._config.truncate or kept is not None
        keeps_end = fields.get("truncation_side") == "left"
        found = []
        for text in texts:
            is_text = isinstance(text, str)
            ids = _bytes(self._config.document_instruction + text) if is_text else text
            ids = _cut(ids, most, truncates=truncates, keeps_end=keeps_end)
            found.append(self._enclosed(ids) if added and is_text else _Given(ids))
        return found, []

    @property
    def _sides(self) -> tuple[list[str], list[str]]:
        """The queries and the documents."""
        fields = self._fields
        if self._path in RERANK:
            given = fields["documents"]
            return [fields["query"]], [d["text"] if isinstance(d, dict) else d for d in given]
        names = next(pair for pair in _SIDES if pair[0] in fields)
        first, second = ([v] if isinstance(v := fields[name], str) else v for name in names)
        return first, second

    @property
    def _truncates(self) -> bool:
        return self._config.truncate or "truncate_prompt_tokens" in self._fields

    @property
    def _chunks(self) -> bool:
        has_parts = self._path == "/v3/rerank" or "max_chunks_per_doc" in self._fields
        return has_parts and not self._truncates

    def _given_alike(self) -> tuple[list[_Given], list[int]]:
        config, found = self._config, []
        truncates, most = self._truncates or self._chunks, MAX_LENGTH - 2
        queries, documents = self._sides
        for text in queries:
            ids = _cut(_bytes(config.query_instruction + text), most, truncates=truncates)
            found.append(self._enclosed(ids))
        few = self._fields.get("max_tokens_per_doc") or most
        for text in documents:
            ids = _bytes(config.document_instruction + text)
            is_cut = truncates or few < most
            found.append(self._enclosed(_cut(ids, min(few, most), truncates=is_cut)))
        return found, []

    def _given_pairs(self) -> tuple[list[_Given], list[int]]:
        queries, documents = self._sides
        kept = self._fields.get("truncate_prompt_tokens")
        limit = MAX_LENGTH if kept in (None, -1) else kept
        few = self._fields.get("max_tokens_per_doc")
        if ENCODERS[self._action.model].joins_pairs and few:
            raise _Refused
        found, owners = [], []
        for owner, document in enumerate(documents):
            query = queries[owner if len(queries) > 1 else 0]
            first = self._config.query_instruction + query
            second = self._config.document_instruction + document
            if ENCODERS[self._action.model].joins_pairs:
                ids = _cut(_bytes(first + second), limit - 2, truncates=self._truncates)
                parts = [self._enclosed(ids)]
            else:
                parts = self._parts(_bytes(first), _bytes(second)[: few or None], limit - 3)
            found += parts
            owners += [owner] * len(parts)
        return found, owners

    def _parts(self, query: list[int], document: list[int], room: int) -> list[_Given]:
        if self._truncates or self._chunks:
            query = query[:room]
        elif len(query) > room or len(query) + len(document) > room:
            raise _Refused
        if self._truncates:
            document = document[:room]
            while len(query) + len(document) > room:
                longer = document if len(document) >= len(query) else query
                longer.pop()
        parts = [(query, document)]
        if self._chunks:
            most = self._fields.get("max_chunks_per_doc") or 10_000
            document = document[: room * most]
            if len(query) + len(document) > room:
                query = query[: max(1, room // 2)]
                size = room - len(query)
                parts = [(query, document[at : at + size]) for at in range(0, len(document), size)]
                parts = parts[:most]
        return [_Given([CLS, *q, SEP, *d, SEP], len(d) + 1) for q, d in parts]

    # The numbers

    def _vectors(self, rows: NDArray[Any]) -> NDArray[Any]:
        fields = self._fields
        rows = rows[:, : fields.get("dimensions", _WIDTH)].astype(np.float64)
        normalizes = fields.get("use_activation", self._config.normalize)
        if self._path == "/api/embed":
            normalizes = True
        if not normalizes:
            return rows
        scaled: NDArray[Any] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return scaled

    def _scores(self, rows: NDArray[Any], owners: list[int]) -> list[float]:
        rows = rows.astype(np.float64)
        encoder = ENCODERS[self._action.model]
        if encoder.task is Task.EMBEDDINGS:
            rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
            queries, _ = self._sides
            first, second = rows[: len(queries)], rows[len(queries) :]
            found: list[float] = np.sum(first * second, axis=1).tolist()
            return found
        margins = rows[:, 0] if encoder.width == 1 else rows[:, 1] - rows[:, 0]
        if self._fields.get("use_activation", True):
            margins = 1 / (1 + np.exp(-margins))
        pairs = list(zip(owners, margins.tolist(), strict=True))
        return [max(m for o, m in pairs if o == owner) for owner in range(owners[-1] + 1)]

    # The forms

    def _faults_of_ollama(self, body: Any, rows: NDArray[Any], num_tokens: int) -> list[str]:
        if self._path == "/api/embeddings":
            return _differences([body["embedding"]], rows)
        is_right = body["prompt_eval_count"] == num_tokens
        faults = [] if is_right else [f"{body['prompt_eval_count']} tokens, not {num_tokens}"]
        return faults + _differences(body["embeddings"], rows)

    def _faults_of_vectors(self, body: Any, rows: NDArray[Any], num_tokens: int) -> list[str]:
        got = []
        for index, one in enumerate(body["data"]):
            if one["index"] != index:
                return [f"the indices are {[one['index'] for one in body['data']]}"]
            vector = one["embedding"]
            if isinstance(vector, str) != (self._fields.get("encoding_format") == "base64"):
                return [f"a vector is {vector!r}"]
            if isinstance(vector, str):
                vector = np.frombuffer(b64decode(vector), np.float32).tolist()
            got.append(vector)
        return _faults_of_usage(body, num_tokens) + _differences(got, rows)

    def _faults_of_scores(self, body: Any, scores: list[float], num_tokens: int) -> list[str]:
        got = [one["score"] for one in body["data"]]
        if [one["index"] for one in body["data"]] != list(range(len(scores))):
            return [f"the indices are {[one['index'] for one in body['data']]}"]
        return _faults_of_usage(body, num_tokens) + _differences(got, scores)

    def _faults_of_ranks(self, body: Any, scores: list[float], num_tokens: int) -> list[str]:
        fields, is_ovms = self._fields, self._path == "/v3/rerank"
        _, documents = self._sides
        most = fields.get("top_n") or len(documents)
        results = body["results"]
        indices = [result["index"] for result in results]
        if len(set(indices)) != len(indices) or len(indices) != min(most, len(documents)):
            return [f"the indices are {indices}"]
        got = [result["relevance_score"] for result in results]
        faults = _differences(got, [scores[index] for index in indices])
        if got != sorted(got, reverse=True) or set(indices) != _best(scores, indices):
            faults.append(f"the order is {indices} of {scores}")
        returns = fields.get("return_documents", not is_ovms)
        texts = [result["document"]["text"] if "document" in result else None for result in results]
        if texts != [documents[index] if returns else None for index in indices]:
            faults.append(f"the documents are {texts}")
        if self._path == "/v2/rerank" and body["meta"]["tokens"] != {"input_tokens": num_tokens}:
            faults.append(f"the tokens are {body['meta']}, not {num_tokens}")
        return faults if is_ovms else faults + _faults_of_usage(body, num_tokens)


def _best(scores: list[float], indices: list[int]) -> set[int]:
    """Returns the indices of the best scores, as many as there are `indices`, and of those as good
    as their worst the ones that are among `indices`."""
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i not in indices))
    return set(order[: len(indices)])


def _faults_of_usage(body: Any, num_tokens: int) -> list[str]:
    right = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    return [] if body["usage"] == right else [f"usage {body['usage']}, not {right}"]


def _differences(got: Any, expected: Any) -> list[str]:
    if np.shape(got) == np.shape(expected) and np.allclose(got, expected, rtol=0, atol=1e-6):
        return []
    return [f"got {got}, not {np.asarray(expected).tolist()}"]
