"""Holds what an operator has set: some fields of the configuration, from several sources that
merge. What nobody has set has the default of `config`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

from fastovms.config.api_config import ApiConfig, ChatConfig, MediaConfig
from fastovms.config.encoder_config import EncoderConfig
from fastovms.config.engine_config import EngineConfig, PrefixCacheConfig
from fastovms.config.files_config import BatchConfig, FilesConfig
from fastovms.config.http_config import HttpConfig, SecurityConfig
from fastovms.config.model_config import DEMO_MODEL, ModelFiles, ModelLimits, RepositoryConfig
from fastovms.config.residency_config import ResidencyConfig
from fastovms.config.service_config import ServiceConfig, StateConfig

Parameters = ParamSpec("Parameters")
Section = TypeVar("Section")


class ConfigField(NamedTuple):
    """A field of a section of the configuration, which is one of the dataclasses of `config`."""

    section: Callable[..., object]
    name: str

    @property
    def default(self) -> object:
        return getattr(self.section(), self.name)

    def __str__(self) -> str:
        return f"{self.section.__name__}.{self.name}"


class Fields:
    """The fields of a section, such as `Fields(HttpConfig).port`. Another name is an error, so that
    a table with a wrong one cannot be imported."""

    def __init__(self, section: type[Any]) -> None:
        for known in dataclasses.fields(section):
            setattr(self, known.name, ConfigField(section, known.name))

    def __getattr__(self, name: str) -> ConfigField:
        raise AttributeError(f"the section has no field {name}, only {', '.join(vars(self))}")


@dataclass(frozen=True, slots=True)
class Settings:
    """The fields that are set. `low | high` is both, of which `high` goes before.

    Attributes:
        given: their values; of other fields nothing is said.
    """

    given: Mapping[ConfigField, Any] = field(default_factory=dict)

    @staticmethod
    def of(
        section: Callable[Parameters, object],
        /,
        *_: Parameters.args,
        **given: Parameters.kwargs,
    ) -> Settings:
        """Returns settings of one section: `Settings.of(HttpConfig, port=80)`."""
        known = Fields(section)  # type: ignore[arg-type]
        return Settings({getattr(known, name): value for name, value in given.items()})

    def __or__(self, high: Settings) -> Settings:
        """Merges two sources. Of fields that are mappings, such as the properties of a device, each
        member is merged by itself."""
        merged = {**self.given, **high.given}
        for key in self.given.keys() & high.given.keys():
            if isinstance(merged[key], Mapping):
                merged[key] = {**self.given[key], **merged[key]}
        return Settings(merged)

    def section(self, section: Callable[..., Section]) -> Section:
        """Returns a section of the configuration, with defaults where nothing is set."""
        return section(**{key.name: value for key, value in self.only(section).given.items()})

    def only(self, *sections: Callable[..., object]) -> Settings:
        """Returns what is set of these sections."""
        return Settings({key: self.given[key] for key in self.given if key.section in sections})


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model as the operator names it.

    Attributes:
        location: its directory or GGUF file, a graph of OVMS or the directory of one, or its id on
            the hub, "ORG/NAME".
        names: what clients may call it; none = the directory's name, or the id.
        settings: what the operator has set of `MODEL_SECTIONS`. It goes before what a graph says.
    """

    location: str = str(DEMO_MODEL)
    names: tuple[str, ...] = ()
    settings: Settings = field(default_factory=Settings)


MODEL_SECTIONS: Final = (ModelFiles, EngineConfig, ChatConfig, EncoderConfig, ModelLimits)
"""The sections that each model has for itself."""

# The sections' fields, for the tables of what sets them.
API: Final = Fields(ApiConfig)
BATCHES: Final = Fields(BatchConfig)
CHAT: Final = Fields(ChatConfig)
ENCODER: Final = Fields(EncoderConfig)
ENGINE: Final = Fields(EngineConfig)
FILES: Final = Fields(ModelFiles)
HTTP: Final = Fields(HttpConfig)
LIMITS: Final = Fields(ModelLimits)
MEDIA: Final = Fields(MediaConfig)
PREFIX_CACHE: Final = Fields(PrefixCacheConfig)
REPOSITORY: Final = Fields(RepositoryConfig)
RESIDENCY: Final = Fields(ResidencyConfig)
SECURITY: Final = Fields(SecurityConfig)
SERVICE: Final = Fields(ServiceConfig)
SOURCE: Final = Fields(ModelSource)
STATE: Final = Fields(StateConfig)
UPLOADS: Final = Fields(FilesConfig)
