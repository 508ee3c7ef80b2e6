"""Generates texts with exported models as a server does, and compares them with transformers."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.models import TOKENIZER_FILES
from fastovms.app.choice import compile_backend
from fastovms.backend import GenerationBackend
from fastovms.backends.model_files import read_model_info
from fastovms.backends.paged.backend import PagedBackend
from fastovms.config import EngineConfig
from fastovms.errors import ConfigurationError
from fastovms.params import GenerationOutput, GenerationRequest, SamplingParams
from fastovms.server_config import DEMO_MODEL
from fastovms.system.disk import DiskCache

MAX_LOGPROB_DIFFERENCE: Final = 1e-3
MEMORY: Final = 2**28
NUM_DRAFTED: Final = 3

_PLAIN: Final = EngineConfig(
    precision="exact", enable_prefix_caching=False, enable_prompt_lookup=False, max_num_seqs=16
)


class Reference(NamedTuple):
    """A text that transformers has generated."""

    prompt: list[int]
    token_ids: list[int]
    logprobs: list[float]


@dataclass(frozen=True)
class Way:
    """A way to generate the texts.

    Attributes:
        is_crowd: whether all requests run at once instead of one after another.
        num_runs: the number of runs over one cache; the last run is compared.
        otherwise: the configuration to use if the model refuses `config`.
    """

    name: str
    config: EngineConfig = _PLAIN
    otherwise: EngineConfig | None = None
    is_crowd: bool = True
    num_runs: int = 1
    num_drafted: int | None = None


class Result(NamedTuple):
    """The result of one model. `cells` has a table cell for each way."""

    backend: str
    cells: list[str]


def ways(model_dir: Path) -> list[Way]:
    cached = replace(_PLAIN, enable_prefix_caching=True, max_num_batched_tokens=64)
    drafted = replace(_PLAIN, draft_model=model_dir)
    return [
        Way("alone", is_crowd=False),
        Way("in a crowd of 16"),
        Way("with cached prefixes", cached, num_runs=2),
        # A hybrid model cannot draft.
        Way(
            "with drafts",
            drafted,
            replace(drafted, draft_model=None, enable_prompt_lookup=True),
            num_drafted=NUM_DRAFTED,
        ),
    ]


WAY_NAMES: Final = [way.name for way in ways(Path())]


def compare(model_dir: Path) -> Result:
    """Compares the model in a directory that `export` has made."""
    for name in TOKENIZER_FILES:
        if name != "generation_config.json":
            shutil.copyfile(DEMO_MODEL / name, model_dir / name)
    content = json.loads((model_dir / "reference.json").read_text())
    references = [Reference(**one) for one in content]
    backend, cells = "-", []
    for way in ways(model_dir):
        for config in (way.config, way.otherwise):
            if config is None:
                break
            try:
                backend, cell = asyncio.run(
                    _run(model_dir, references, replace(way, config=config))
                )
                break
            except ConfigurationError as error:
                cell = f"refused: {error}".replace(
                    f"the model in {model_dir} cannot be served: ", ""
                )
        cells.append(cell)
    return Result(backend, cells)


async def _run(model_dir: Path, references: Sequence[Reference], way: Way) -> tuple[str, str]:
    """Returns the backend's name and the texts of all requests."""
    cache = DiskCache(model_dir / "cache")
    reserve = compile_backend(model_dir, read_model_info(model_dir), way.config, cache)
    backend = reserve(MEMORY, None, None)
    is_paged = isinstance(backend, PagedBackend)
    limit = backend.model.max_model_len
    references = [_cut(one, limit) for one in references if len(one.prompt) < limit]
    backend.start()
    try:
        for _ in range(way.num_runs):
            texts = [_Text(one, str(n), way, is_paged) for n, one in enumerate(references)]
            for text in texts:
                backend.submit(text.request, text)
                if not way.is_crowd:
                    await text.done.wait()
            for text in texts:
                await text.done.wait()
        name = "paged" if is_paged else "genai"
        return name, _describe(texts, backend)
    finally:
        await backend.close()


def _cut(reference: Reference, max_len: int) -> Reference:
    num_tokens = max_len - len(reference.prompt)
    return Reference(
        reference.prompt, reference.token_ids[:num_tokens], reference.logprobs[:num_tokens]
    )


class _Text:
    """Collects the tokens and log probabilities of a request."""

    def __init__(self, reference: Reference, name: str, way: Way, is_paged: bool) -> None:
        self.reference = reference
        self.request = GenerationRequest(
            name,
            reference.prompt,
            SamplingParams(
                temperature=0,
                max_tokens=len(reference.token_ids),
                ignore_eos=True,
                logprobs=1,
                num_assistant_tokens=way.num_drafted if is_paged else None,
            ),
        )
        self.done = asyncio.Event()
        self.error: str | None = None
        self._token_ids: list[int] = []
        self._logprobs: list[float] = []

    def __call__(self, output: GenerationOutput) -> None:
        self._token_ids.extend(output.token_ids)
        self._logprobs.extend(entry.logprob for entry in output.logprobs)
        self.error = output.error
        if output.finish_reason is not None:
            self.done.set()

    def difference(self) -> tuple[bool, float]:
        """Returns whether the tokens differ, and the largest difference of log probabilities before
        the first token that differs."""
        pairs = list(zip(self._token_ids, self.reference.token_ids, strict=False))
        position = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        logprobs = zip(self._logprobs[:position], self.reference.logprobs[:position], strict=False)
        is_other = self._token_ids != self.reference.token_ids
        return is_other, max((abs(a - b) for a, b in logprobs), default=0.0)


def _describe(texts: Sequence[_Text], backend: GenerationBackend) -> str:
    if backend.failure is not None:
        return f"failed: {backend.failure}"
    error = next((text.error for text in texts if text.error), None)
    if error is not None:
        return f"failed: {error}"
    differences: list[Any] = [text.difference() for text in texts]
    num_others = sum(is_other for is_other, _ in differences)
    logprob = max((logprob for _, logprob in differences), default=0.0)
    length = backend.model.max_model_len
    if num_others:
        return f"{num_others} of {len(texts)} differ"
    if not texts or logprob > MAX_LOGPROB_DIFFERENCE:
        return f"within {logprob:.1g}" if texts else f"no text of {length} tokens"
    return "exact"
