"""Reads Ollama Modelfiles: each instruction becomes a flag of `serve`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from fastovms.errors import ConfigurationError

_PARAMETERS: Final = {
    "num_ctx": "--ctx-size",
    "num_predict": "--n-predict",
    "num_thread": "--threads",
    "temperature": "--temp",
    "top_k": "--top-k",
    "top_p": "--top-p",
    "min_p": "--min-p",
    "repeat_penalty": "--repeat-penalty",
    "presence_penalty": "--presence-penalty",
    "frequency_penalty": "--frequency-penalty",
}
"""The flag for each Ollama parameter."""

_SAMPLER: Final = "this sampler is not supported"
_MEMORY: Final = "OpenVINO places the model"
_UNUSED_PARAMETERS: Final = {
    "stop": "answers end at the model's own end tokens; other texts go into `stop` of requests",
    "seed": "a seed goes into `seed` of requests",
    "repeat_last_n": "penalties count all tokens",
    "num_keep": "an answer ends where the context does",
    "num_batch": "see --max-num-batched-tokens",
    **dict.fromkeys(("num_gpu", "main_gpu"), "see --device"),
    **dict.fromkeys(["low_vram", "f16_kv", "use_mmap", "use_mlock", "numa", "vocab_only"], _MEMORY),
    "logits_all": "see `prompt_logprobs` of requests",
    "penalize_newline": "penalties count all tokens",
    **dict.fromkeys(["tfs_z", "typical_p", "mirostat", "mirostat_tau", "mirostat_eta"], _SAMPLER),
}
"""Ollama's parameters that are ignored, and the reason for each."""

_UNUSED: Final = {
    "RENDERER": "the chat template renders the prompt",
    "PARSER": "see --tool-parser",
    "REQUIRES": "it names a version of Ollama",
}
"""Instructions that are ignored, and the reason for each. LICENSE is ignored silently: it affects
no answer."""

_INSTRUCTIONS: Final = (
    *("FROM", "PARAMETER", "TEMPLATE", "SYSTEM", "ADAPTER", "MESSAGE", "LICENSE"),
    *_UNUSED,
)
_ROLES: Final = ("system", "user", "assistant")
_HUBS: Final = re.compile(
    r"(?:https?://)?(?:hf\.co|huggingface\.co)/([^/\s:]+/[^/\s:]+)(?::(\S+))?"
)


class Instruction(NamedTuple):
    """An instruction, its value without quotes, and the number of its first line."""

    name: str
    value: str
    line: int


class Flag(NamedTuple):
    """A flag, its value, and its line in the Modelfile, for messages."""

    source: str
    name: str
    value: object


@dataclass(frozen=True, slots=True)
class Modelfile:
    """The content of a Modelfile.

    Attributes:
        flags: in order; later ones override earlier ones.
        unused: a line for each instruction or parameter that has no effect.
    """

    flags: list[Flag] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)


def read_modelfile(path: Path, *, has_model: bool = False) -> Modelfile:
    """Reads a Modelfile. Paths in it are relative to its directory. Raises ConfigurationError, with
    the line number, if the file cannot be read, or an instruction is invalid or cannot be ignored
    because it changes answers.

    Args:
        has_model: whether the command line names the model, instead of FROM.
    """
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from None
    reader = _Reader(path, has_model=has_model)
    for instruction in instructions(text, str(path)):
        reader.read(instruction)
    return reader.finished()


def instructions(text: str, source: str) -> Iterator[Instruction]:
    """Yields the instructions of a Modelfile. A value in single or triple double-quotes may have
    several lines. Raises ConfigurationError if a line has no instruction, or a quote is not
    closed."""
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        first, line = number + 1, lines[number].strip()
        number += 1
        if not line or line.startswith("#"):
            continue
        word, value = _first_word(line)
        name = word.upper()
        if name not in _INSTRUCTIONS:
            raise ConfigurationError(
                f"{source}, line {first}: an instruction is {', '.join(_INSTRUCTIONS)}, not "
                f"{word[:40]!r}"
            )
        before = ""
        if name in ("MESSAGE", "PARAMETER"):  # these values begin with a role or a parameter's name
            before, value = _first_word(value)
            before += " "
        quote = next((quote for quote in ('"""', '"') if value.startswith(quote)), "")
        if quote:
            quoted = value[len(quote) :]
            while not quoted.rstrip().endswith(quote):
                if number == len(lines):
                    raise ConfigurationError(
                        f"{source}, line {first}: the quote {quote} of {name} has no end"
                    )
                quoted += f"\n{lines[number]}"
                number += 1
            value = quoted.rstrip().removesuffix(quote)
        elif not value:
            raise ConfigurationError(f"{source}, line {first}: {name} {before}has no value")
        yield Instruction(name, before + value, first)


def _first_word(text: str) -> tuple[str, str]:
    """Returns the first word of a string, and the rest, stripped."""
    word, *rest = text.split(None, 1) or [""]
    return word, rest[0].strip() if rest else ""


class _Reader:
    """Converts instructions to flags."""

    def __init__(self, path: Path, *, has_model: bool) -> None:
        self._path = path
        self._has_model = has_model
        self._from = 0  # its line
        self._flags: list[Flag] = []
        self._messages: list[dict[str, str]] = []
        self._unused: dict[str, tuple[list[int], str]] = {}

    def read(self, instruction: Instruction) -> None:
        name, value, line = instruction
        if name in _UNUSED:
            self._skip(line, name, _UNUSED[name])
        match name:
            case "FROM":
                self._read_from(value, line)
            case "PARAMETER":
                self._read_parameter(value, line)
            case "SYSTEM":
                self._add(line, name, "--system-prompt", value)
            case "TEMPLATE" if "{%" in value:
                self._add(line, name, "--chat-template", value)
            case "TEMPLATE":
                reason = "it is a Go template, and the model's own chat template renders prompts"
                self._skip(line, name, f"{reason}; --chat-template takes one in Jinja")
            case "ADAPTER":
                self._read_adapter(value, line)
            case "MESSAGE":
                role, _, content = value.partition(" ")
                if role not in _ROLES or not content.strip():
                    wanted = f"a role ({', '.join(_ROLES)}) and a text"
                    raise self._error(line, f"MESSAGE must be {wanted}, not {value[:60]!r}")
                self._messages.append({"role": role, "content": content.strip()})

    def finished(self) -> Modelfile:
        """Returns the content of the whole file."""
        if not self._from and not self._has_model:
            raise ConfigurationError(f"{self._path} has no FROM, which names the model")
        if self._messages:
            source = f"{self._path}: MESSAGE"
            self._flags.append(Flag(source, "--example-messages", [*self._messages]))
        unused = [
            f"{self._path}, line{'s' * (len(lines) > 1)} {', '.join(map(str, lines))}: {name} is "
            f"not used: {reason}"
            for name, (lines, reason) in self._unused.items()
        ]
        return Modelfile(self._flags, unused)

    def _read_from(self, value: str, line: int) -> None:
        if self._from:
            reason = f"the model is that of line {self._from}; images need an export of the model"
            self._skip(line, "FROM", reason)
            return
        self._from = line
        if not self._has_model:
            self._add(line, "FROM", "--model", self._location(value, line))

    def _location(self, value: str, line: int) -> str:
        """Returns the model of FROM: a path, or a model of a Hugging Face hub."""
        if (path := self._there(value)).exists():
            return str(path)
        if (found := _HUBS.fullmatch(value)) is not None:
            model, tag = found.groups()
            if tag is None or tag == "latest":
                return str(model)
            if tag.endswith(".gguf"):
                return f"{model}/{tag}"
            raise self._error(
                line,
                f"FROM {value} must name the file, such as hf.co/{model}:FILE.gguf, not "
                "the quantization",
            )
        if value.startswith((".", "/", "~")) or value.endswith(".gguf"):
            raise self._error(line, f"FROM names {path}, which does not exist")
        raise self._error(
            line,
            f"FROM {value} names a model of Ollama's library, which is not read: give the path "
            f"that `ollama show {value} --modelfile` prints, hf.co/ORG/NAME, or the model on the "
            "command line",
        )

    def _read_parameter(self, value: str, line: int) -> None:
        name, _, given = value.partition(" ")
        if name in _UNUSED_PARAMETERS:
            self._skip(line, f"PARAMETER {name}", _UNUSED_PARAMETERS[name])
        elif name not in _PARAMETERS:
            known = ", ".join(sorted({*_PARAMETERS, *_UNUSED_PARAMETERS}))
            raise self._error(line, f"there is no parameter {name[:40]!r}, only {known}")
        else:
            self._add(line, f"PARAMETER {name}", _PARAMETERS[name], given)

    def _read_adapter(self, value: str, line: int) -> None:
        path = self._there(value)
        if not path.is_dir():
            raise self._error(
                line,
                f"ADAPTER must be a directory with an adapter in PEFT's format, not {value}: GGUF "
                "adapters are not read",
            )
        self._add(line, "ADAPTER", "--lora-modules", f"{path.name}={path}")
        self._skip(line, "ADAPTER", f"by default: clients ask for the model {path.name} to use it")

    def _there(self, value: str) -> Path:
        return (self._path.parent / Path(value).expanduser()).resolve()

    def _add(self, line: int, name: str, flag: str, value: object) -> None:
        self._flags.append(Flag(f"{self._path}, line {line}: {name}", flag, value))

    def _skip(self, line: int, name: str, reason: str) -> None:
        self._unused.setdefault(name, ([], reason))[0].append(line)

    def _error(self, line: int, message: str) -> ConfigurationError:
        return ConfigurationError(f"{self._path}, line {line}: {message}")
