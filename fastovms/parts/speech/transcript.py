"""The types for speech recognition that layers exchange: audio samples and transcripts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

SAMPLE_RATE: Final = 16_000
"""The sample rate in Hz of all audio for models, which has one channel."""

WINDOW_SECONDS: Final = 30
"""The seconds of audio that a model transcribes at a time."""

Samples = NDArray[np.int16]
"""Samples of one channel, int16 [N]."""


_LANGUAGES: Final = """
af afrikaans am amharic ar arabic as assamese az azerbaijani ba bashkir be belarusian bg bulgarian
bn bengali bo tibetan br breton bs bosnian ca catalan ca valencian cs czech cy welsh da danish
de german el greek en english es spanish es castilian et estonian eu basque fa persian fi finnish
fo faroese fr french gl galician gu gujarati ha hausa haw hawaiian he hebrew hi hindi hr croatian
ht haitian hu hungarian hy armenian id indonesian is icelandic it italian ja japanese jw javanese
ka georgian kk kazakh km khmer kn kannada ko korean la latin lb luxembourgish ln lingala lo lao
lt lithuanian lv latvian mg malagasy mi maori mk macedonian ml malayalam mn mongolian mr marathi
ms malay mt maltese my myanmar my burmese ne nepali nl dutch nl flemish nn nynorsk no norwegian
oc occitan pa punjabi pl polish ps pashto pt portuguese ro romanian ro moldavian ru russian
sa sanskrit sd sindhi si sinhala sk slovak sl slovenian sn shona so somali sq albanian sr serbian
su sundanese sv swedish sw swahili ta tamil te telugu tg tajik th thai tk turkmen tl tagalog
tl filipino tl fil
tr turkish tt tatar uk ukrainian ur urdu uz uzbek vi vietnamese yi yiddish yo yoruba zh chinese
zh mandarin yue cantonese jw jv no nb he iw
"""
"""Whisper's language codes, each before an English name or another code of the language."""


def language_code(text: str) -> str | None:
    """Returns the code of a language, given a code with or without a region ("en-US") or an English
    name ("English"). None = the text is empty or "auto": the model detects the language."""
    word = text.strip().lower()
    words = _LANGUAGES.split()
    codes = dict(zip(words[1::2], words[::2], strict=True))
    code = word.replace("_", "-").partition("-")[0]
    return None if word in ("", "auto") else codes.get(code, code)


def language_names() -> dict[str, str]:
    """Returns the English name of each language by its code, such as "English" by "en"."""
    words = _LANGUAGES.split()
    pairs = list(zip(words[::2], words[1::2], strict=True))
    return {code: name.title() for code, name in reversed(pairs)}


class Segment(NamedTuple):
    """A segment of a transcript with its start and end in seconds.

    Attributes:
        window: the second at which the window of the segment begins.
        token_ids: the tokens of the text.
    """

    start: float
    end: float
    text: str
    window: float = 0.0
    token_ids: tuple[int, ...] = ()


class Word(NamedTuple):
    """A word of a transcript with its start and end in seconds."""

    start: float
    end: float
    text: str


@dataclass(frozen=True, slots=True)
class SpeechParams:
    """The parameters of a transcription.

    Attributes:
        language: the code of the spoken language, such as "en"; None = the model detects it.
        translates: whether to translate to English.
        prompt: text that precedes the transcript; "" = none.
        keywords: words that the audio may contain; "" = none.
        temperature: the sampling temperature; 0 = greedy decoding.
        seed: the seed of the sampling.
        has_segments, has_words: whether the times of segments and words are needed.
    """

    language: str | None = None
    translates: bool = False
    prompt: str = ""
    keywords: str = ""
    temperature: float = 0.0
    seed: int = 0
    has_segments: bool = False
    has_words: bool = False


@dataclass(slots=True)
class Transcript:
    """The transcript of audio.

    Attributes:
        language: the code of the spoken language; "" = unknown.
        segments, words: empty unless their times were requested.
        num_tokens: the number of generated tokens.
        queue_time: seconds until the computation began.
        compute_time: seconds from then to the end.
    """

    text: str = ""
    language: str = ""
    segments: list[Segment] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    num_tokens: int = 0
    queue_time: float = 0.0
    compute_time: float = 0.0


@dataclass(frozen=True, slots=True)
class SpeechInfo:
    """The abilities and limits of a speech recognition model.

    Attributes:
        languages: the codes of the supported languages.
        translates: whether translation to English is supported.
        finds_words: whether the times of words are supported.
        finds_times: whether the times of segments are supported.
    """

    languages: frozenset[str]
    translates: bool
    finds_words: bool
    finds_times: bool = True


class Audio(Protocol):
    """Decoded audio."""

    @property
    def num_samples(self) -> int:
        """The number of samples."""

    def read(self, start: int, count: int) -> Samples:
        """Returns `count` samples from position `start`, fewer at the end. Blocks while the disk is
        slow."""


OnText = Callable[[str], None]
"""Called with each further piece of a transcript's text."""
