"""Says how byte-pair tokenizers cut texts into words before they join bytes: by
`tokenizer.ggml.pre`.

The expressions are those of the models' own tokenizer.json files, as `llm_tokenizer_bpe` quotes
them in src/llama-vocab.cpp of https://github.com/ggml-org/llama.cpp. Several are applied in turn,
each to the pieces that the one before has made, and what none matches is a word as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from fastovms.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How a byte-pair tokenizer cuts texts.

    Attributes:
        patterns: regular expressions, in PCRE's and Oniguruma's common language.
        adds_bos: whether texts begin with the token for their beginning, where the file does not
            say.
        ignores_merges: whether a word that is a token is one token, whatever the merges say.
        normalizer: Unicode's form, by its name in tokenizer.json.
    """

    patterns: tuple[str, ...]
    adds_bos: bool = False
    ignores_merges: bool = False
    normalizer: str | None = None


_SUFFIXES: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER: Final = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
_LOWER: Final = r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_SPACES: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SIGNS: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_CASES: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+",
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*",
)

_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3: Final = rf"{_SUFFIXES}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_SIGNS}|{_SPACES}"
_QWEN2: Final = rf"{_SUFFIXES}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_SIGNS}|{_SPACES}"
_TEKKEN: Final = "|".join([*_CASES, r"\p{N}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", _SPACES])
_GPT4O: Final = "|".join(
    [
        *(f"{each}{_SUFFIXES}?" for each in _CASES),
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        _SPACES,
    ]
)
_SEED_CODER: Final = (
    rf"{_SUFFIXES}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
)
_DEEPSEEK_V3: Final = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
)
_DEFAULT: Final = (
    r"[\p{P}\$\+<=>\^~\|]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"\p{N}+",
    r"[0-9][0-9][0-9]",
)

_BYTES: Final = PreTokenizer((_GPT2,))
_DIGITS: Final = PreTokenizer((r"\p{N}", _GPT2))
_TRIPLES: Final = PreTokenizer((_LLAMA3,))
_FAMILY_OF_LLAMA3: Final = replace(_TRIPLES, adds_bos=True, ignores_merges=True)
_SINGLES: Final = PreTokenizer((_QWEN2,))
_FAMILY_OF_GPT4O: Final = PreTokenizer((_GPT4O,))

PRE_TOKENIZERS: Final[Mapping[str, PreTokenizer]] = {
    "default": PreTokenizer(_DEFAULT),
    **dict.fromkeys(
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "midm-2.0"), _FAMILY_OF_LLAMA3
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe", "glm4"), _TRIPLES),
    "tekken": PreTokenizer((_TEKKEN,), adds_bos=True, ignores_merges=True),
    **dict.fromkeys(
        ("gpt-2", "phi-2", "mpt", "olmo", "trillion", "exaone4", "a.x-4.0", "mellum"), _BYTES
    ),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _DIGITS
    ),
    "qwen2": replace(_SINGLES, normalizer="NFC"),
    **dict.fromkeys(("deepseek-r1-qwen", "megrez", "stablelm2", "kormo", "hunyuan"), _SINGLES),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2"), _FAMILY_OF_GPT4O),
    "seed-coder": PreTokenizer((_SEED_CODER,)),
    "deepseek-v3": PreTokenizer(_DEEPSEEK_V3),
}
"""Ways to cut texts by name. That of Qwen 2 composes characters first, as its own tokenizer does
and llama.cpp does not."""


def find_pre_tokenizer(name: object) -> PreTokenizer:
    """Returns how texts are cut.

    Raises:
        ConfigurationError: that is not known.
    """
    if name is None:
        raise ConfigurationError(
            "it names no tokenizer.ggml.pre, as files of before May 2024: it is not known how "
            "texts are cut into words"
        )
    if not isinstance(name, str) or name not in PRE_TOKENIZERS:
        raise ConfigurationError(
            f"the pre-tokenizer {name} is not taken; those taken are {', '.join(PRE_TOKENIZERS)}"
        )
    return PRE_TOKENIZERS[name]
