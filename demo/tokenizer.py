"""The demo tokenizer: a byte-level BPE whose words keep their tokens inside and outside quotes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

VOCAB_SIZE = 1536
CONTEXT_LENGTH = 2048
END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"

# Left out of decoded text; ids 0, 1, 2.
CONTROL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)
# One token each and visible in decoded text, as in Qwen2.5 and Qwen3; ids 3 to 10.
VISIBLE_TOKENS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tools>",
    "</tools>",
    "<tool_response>",
    "</tool_response>",
)

# Capitalised words and digits never take the space before them, so that ` Paris` in a question and
# `"Paris"` in a tool call are the same tokens and copying needs no spelling. Digits stand alone.
SPLIT_PATTERN = "|".join(
    (
        r"\p{Lu}[\p{Ll}\p{M}]*",
        r" ?[\p{Ll}\p{Lt}\p{Lm}\p{Lo}\p{M}]+",
        r"\p{N}",
        r" ?[^\s\p{L}\p{M}\p{N}]+",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s",
    )
)

TEMPLATE_PATH = Path(__file__).with_name("chat_template.jinja")


def build_tokenizer(texts: Iterable[str], vocab_size: int = VOCAB_SIZE) -> PreTrainedTokenizerFast:
    """Learn the merges from `texts` and attach the chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[*CONTROL_TOKENS, *VISIBLE_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    # The trainer reserves every added token as special; only the control tokens are.
    fast = PreTrainedTokenizerFast(
        tokenizer_object=with_visible_tokens(tokenizer),
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[TURN_START],
        model_max_length=CONTEXT_LENGTH,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = TEMPLATE_PATH.read_text(encoding="utf-8")
    return fast


def with_visible_tokens(trained: Tokenizer) -> Tokenizer:
    """The same tokenizer with `VISIBLE_TOKENS` as plain added tokens under the same ids."""
    tokenizer = Tokenizer(trained.model)
    tokenizer.pre_tokenizer = trained.pre_tokenizer
    tokenizer.decoder = trained.decoder
    tokenizer.add_special_tokens(list(CONTROL_TOKENS))
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in VISIBLE_TOKENS])
    return tokenizer
