"""Chats: answers of the demo model over several turns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from bench.replay.session import Session, Turn
from bench.replay.vocabulary import Vocabulary
from fastovms.config import EngineConfig
from fastovms.engine.model.compilation import load_model
from fastovms.params import GenerationRequest, SamplingParams
from fastovms.server_config import DEMO_MODEL
from fastovms.text.tokenizer import Tokenizer
from tests.engine.engines import full_engine

NUM_CHATS = 64
_SUBJECTS = ("a fox", "the sea", "an old clock", "two friends", "a lost letter", "the moon")
_PLACES = ("Norway", "Peru", "Japan", "Kenya", "Italy", "Canada", "Egypt", "India")
_QUESTIONS = (
    "Tell me a story about {subject}.",
    "What is the capital of {place}?",
    "Tell me another story.",
)
_END_TOKEN_IDS = frozenset((0, 2))
_MAX_TOKENS = 256
_CACHE_TOKENS = 64 * 1024


def chats(texts: list[list[str]], vocabulary: Vocabulary) -> Iterator[Session]:
    """Yields a session for each chat. `texts` has the messages of both sides in turn."""
    for chat in texts:
        history: tuple[int, ...] = ()
        turns = []
        for question, said in zip(chat[::2], chat[1::2], strict=True):
            history += vocabulary.encode(f"user\n{question}\nassistant\n")
            answer = vocabulary.encode(said)
            turns.append(Turn(history, answer))
            history += answer
        yield Session(tuple(turns))


def kept_chats(path: Path) -> list[list[str]]:
    """Reads the chats at `path`, which are generated and written first if they are missing."""
    if not path.exists():
        path.write_text(json.dumps(_generated(), indent=1))
    texts: list[list[str]] = json.loads(path.read_text())
    return texts


def _generated() -> list[list[str]]:
    model = load_model(DEMO_MODEL)
    tokenizer = Tokenizer.load(DEMO_MODEL)
    num_blocks = _CACHE_TOKENS // model.block_size
    model.allocate_cache(num_blocks)
    engine = full_engine(model, EngineConfig(), num_blocks=num_blocks, max_model_len=2048)
    subjects = list(product(_SUBJECTS, _PLACES))
    chats: list[list[str]] = [[] for _ in range(NUM_CHATS)]
    for question in _QUESTIONS:
        answers: list[list[int]] = [[] for _ in chats]
        for number, chat in enumerate(chats):
            subject, place = subjects[number % len(subjects)]
            chat.append(question.format(subject=subject, place=place))
            prompt = tokenizer.encode(_prompt(chat), add_special_tokens=False)
            params = SamplingParams(
                max_tokens=_MAX_TOKENS,
                temperature=0.7,
                seed=number,
                eos_token_ids=_END_TOKEN_IDS,
            )
            engine.add(GenerationRequest(str(number), prompt, params))
        while engine.has_work:
            for request_id, output in engine.step():
                answers[int(request_id)] += output.token_ids
        for chat, answer in zip(chats, answers, strict=True):
            chat.append(tokenizer.decode(answer))
    return chats


def _prompt(chat: list[str]) -> str:
    """Renders a chat that ends with a question in the demo model's template."""
    roles = ("user", "assistant")
    said = [f"<|im_start|>{roles[i % 2]}\n{text}<|im_end|>\n" for i, text in enumerate(chat)]
    return "".join(said) + "<|im_start|>assistant\n"
