"""What an operator changes while servers run: API keys, the list of models, certificates.

An operator writes files and has the servers read them. Before and after, it is known which keys
count and which models there are; in between, both the old and the new may hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fastovms.errors import ConfigurationError
from fastovms.server_config import ModelConfig, ModelSource
from tests.simulation.prompt_cache import STATE_DIR
from tests.simulation.tls import CERTIFICATES

BROKEN: Final = "broken"
"""The variant of a model that cannot be loaded."""

VARIANTS: Final = ("a", "b")
"""Those that can be. They say different things."""


def weights_name(model: str, variant: str) -> str:
    """Returns the name by which a `SimModel` speaks as this variant."""
    return model if variant == VARIANTS[0] else f"{model}-{variant}"


@dataclass(frozen=True)
class Reload:
    """A change of what the operator's files say.

    Attributes:
        keys: the keys that count from now on; none = the keys stay.
        models: the models that there are from now on, by name and variant: another variant is
            another configuration of the same model; none = the list stays.
        certificate: the number of the server's certificate from now on; "" = it stays.
        by: how servers learn of it: "signal", "request" (an operator's), or "file" (they look).
        is_bad: whether the file cannot be used, so that nothing changes. It is put in order soon.
    """

    number: int
    at: float
    keys: tuple[str, ...] = ()
    models: tuple[tuple[str, str], ...] = ()
    by: str = "signal"
    is_bad: bool = False
    certificate: str = ""

    def __str__(self) -> str:
        what = self.keys or dict(self.models) or f"certificate {self.certificate}"
        return f"{self.number}: at {self.at:.3f} reload by {self.by} {what}{' bad' * self.is_bad}"


class Timeline:
    """What may hold of each key and model, and when. A key is "there" or "away", a model is a
    variant, or "away", and the certificate is a number."""

    def __init__(self, states: dict[str, str]) -> None:
        self._spans = {name: [(0.0, frozenset((state,)))] for name, state in states.items()}

    def begin(self, now: float, states: dict[str, str]) -> None:
        """Records that servers may begin to go by new states."""
        for name, state in states.items():
            spans = self._spans[name]
            spans.append((now, spans[-1][1] | {state}))

    def end(self, now: float, states: dict[str, str]) -> None:
        """Records that all servers go by new states."""
        for name, state in states.items():
            self._spans[name].append((now, frozenset((state,))))

    def between(self, name: str, start: float, end: float) -> frozenset[str]:
        """Returns the states that may have held within a time."""
        found: frozenset[str] = frozenset()
        spans = self._spans.get(name, [(0.0, frozenset(("there",)))])
        ends = [since for since, _ in spans[1:]]
        for (since, states), until in zip(spans, [*ends, end], strict=True):
            if since <= end and until >= start:
                found |= states
        return found


class Operator:
    """The operator's files.

    Args:
        keys: the keys that count at first; none = no client needs a key.
        models: the models at first, by name and variant.
        known: all keys and models that there ever are.
        keeps: whether a server keeps a model as it was when its new variant is broken, as those do
            which have all models in memory.
    """

    key_file: Final = STATE_DIR / "keys.txt"
    list_file: Final = STATE_DIR / "models.json"
    certificate_file: Final = STATE_DIR / "server.crt"
    private_key_file: Final = STATE_DIR / "server.key"

    def __init__(
        self,
        keys: Sequence[str],
        models: Sequence[tuple[str, str]],
        known: Sequence[str],
        *,
        keeps: bool,
    ) -> None:
        self.keys = tuple(keys)
        self.models = tuple(models)
        self._known = tuple(known)
        self._keeps = keeps
        self.certificate = "0"
        self._states: dict[str, str] = {}
        self._is_bad = False
        self._states = self._states_of(keys, models) | {"certificate": self.certificate}
        self.timeline = Timeline(self._states)

    def write(self) -> None:
        """Writes all files as they are at first."""
        STATE_DIR.mkdir(parents=True, exist_ok=True)
        self._put(self.key_file, "\n".join(self.keys))
        self._put(self.list_file, str(self.models))
        self._put_certificate()

    def states_after(self, reload: Reload) -> dict[str, str]:
        """Returns the states of all keys and models after a reload."""
        if not reload.is_bad:
            keys, models = reload.keys or self.keys, reload.models or self.models
            self._states = self._states_of(keys, models)
            self._states["certificate"] = reload.certificate or self.certificate
        return self._states

    def change(self, reload: Reload) -> None:
        """Writes the files of a reload."""
        self._is_bad = reload.is_bad
        if not reload.is_bad:
            self.keys, self.models = reload.keys or self.keys, reload.models or self.models
            self.certificate = reload.certificate or self.certificate
        if reload.keys:
            self._put(self.key_file, "a b c" if reload.is_bad else "\n".join(self.keys))
        elif reload.certificate and reload.is_bad:
            self._put(self.private_key_file, "no key")
        elif reload.certificate:
            self._put_certificate()
        else:
            self._put(self.list_file, str(self.models))

    def mend(self, reload: Reload) -> None:
        """Puts a file that cannot be used in order."""
        self._is_bad = False
        if reload.keys:
            self._put(self.key_file, "\n".join(self.keys))
        elif reload.certificate:
            self._put_certificate()

    def _put_certificate(self) -> None:
        path = CERTIFICATES[int(self.certificate)]
        self._put(self.certificate_file, path.read_text())
        self._put(self.private_key_file, path.with_suffix(".key").read_text())

    def _states_of(self, keys: Sequence[str], models: Sequence[tuple[str, str]]) -> dict[str, str]:
        states = dict.fromkeys(self._known, "away") | dict.fromkeys(keys, "there")
        for name, variant in models:
            before = self._states.get(name)
            is_kept = variant == BROKEN and self._keeps and before in VARIANTS
            states[name] = before if is_kept and before is not None else variant
        return states

    def _put(self, path: Path, text: str) -> None:
        """Replaces a file in one moment."""
        new = path.with_suffix(".new")
        new.write_text(text)
        new.replace(path)

    # What the server reads

    def read_list(self) -> list[ModelSource]:
        if self._is_bad:
            raise ConfigurationError("the list of models is no JSON")
        return [
            ModelSource(f"{STATE_DIR}/{name}/{variant}", (name,)) for name, variant in self.models
        ]

    def find(self, source: ModelSource) -> ModelConfig:
        return ModelConfig(Path(source.location), source.names)
