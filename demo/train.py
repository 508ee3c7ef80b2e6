"""Train the demo model from scratch on generated text and save a transformers checkpoint."""

from __future__ import annotations

import argparse
import itertools
import math
import random
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast

from demo.corpus import training_samples
from demo.model import TrainingLlama, llama_config, to_transformers
from demo.samples import Sample
from demo.tokenizer import CONTEXT_LENGTH, END_OF_TEXT, TURN_END, TURN_START, build_tokenizer

# Row length of each stage and the share of the steps at which it ends. Short rows first: facts and
# copying are learned from short chats in a fraction of the time, then come the tools, and at the
# end rows as long as the context.
STAGES = ((192, 0.4), (512, 0.95), (CONTEXT_LENGTH, 1.0))
TOKENIZER_SAMPLES = 6000
STATE_FILE = "state.pt"


# The weight of the tokens that the model only reads: predicting them is no goal, but schemas and
# questions repeat words, and so teach copying long before the answers do.
PROMPT_WEIGHT = 0.2


class Document(NamedTuple):
    """Token ids of one sample and the weight of each in the loss."""

    ids: list[int]
    weights: list[float]


class Encoder:
    """Samples to documents: the chat template around the turns, assistant text to be learned."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        self._end_of_text, self._turn_end = tokenizer.convert_tokens_to_ids([END_OF_TEXT, TURN_END])
        self._header = tokenizer.encode(f"{TURN_START}assistant\n")

    def text(self, sample: Sample) -> str:
        if not sample.messages:
            return sample.target
        prompt = self._tokenizer.apply_chat_template(
            list(sample.messages),
            tools=list(sample.tools) or None,
            add_generation_prompt=True,
            tokenize=False,
            enable_thinking=sample.thinking,
        )
        return f"{prompt}{sample.target}{TURN_END}\n"

    def documents(self, samples: list[Sample]) -> Iterator[Document]:
        encoded = self._tokenizer([self.text(sample) for sample in samples])["input_ids"]
        for sample, ids in zip(samples, encoded, strict=True):
            ids.append(self._end_of_text)
            yield Document(ids, self._weights(sample, ids))

    def _weights(self, sample: Sample, ids: list[int]) -> list[float]:
        if not sample.messages:
            return [1.0] * len(ids)
        width = len(self._header)
        starts = [i + width for i in range(len(ids)) if ids[i : i + width] == self._header]
        if not sample.learn_history:
            starts = starts[-1:]
        weights = [PROMPT_WEIGHT] * len(ids)
        for start in starts:
            end = ids.index(self._turn_end, start) + 1
            weights[start:end] = [1.0] * (end - start)
        return weights


class Row(NamedTuple):
    """Documents packed to a fixed length; `owners` numbers the document of each token."""

    ids: list[int]
    weights: list[float]
    owners: list[int]


def rows(documents: Iterator[Document], length: int) -> Iterator[Row]:
    """Whole documents packed into rows of `length` tokens; longer documents are left out."""
    row = Row([], [], [])
    for document in documents:
        size = len(document.ids)
        if size > length:
            continue
        if len(row.ids) + size > length:
            padding = length - len(row.ids)
            yield Row(
                row.ids + [0] * padding, row.weights + [0.0] * padding, row.owners + [-1] * padding
            )
            row = Row([], [], [])
        row.owners.extend([len(row.ids)] * size)
        row.ids.extend(document.ids)
        row.weights.extend(document.weights)


class Batch(NamedTuple):
    """Ids and next tokens [rows, length] with the weights of the latter, and who sees whom in
    `mask` [rows, 1, length, length]."""

    ids: torch.Tensor
    mask: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor


def batch_of(packed: list[Row]) -> Batch:
    """A token sees its own document up to itself, as in a request of its own."""
    ids = torch.tensor([row.ids for row in packed])
    owners = torch.tensor([row.owners for row in packed])
    visible = (owners[:, :, None] == owners[:, None, :]).tril()[:, None]
    mask = torch.zeros(visible.shape, dtype=torch.bfloat16).masked_fill_(~visible, -torch.inf)
    weights = torch.tensor([row.weights for row in packed]).roll(-1, 1)
    weights[:, -1] = 0.0
    weights[:, :-1] *= owners[:, 1:] == owners[:, :-1]
    return Batch(ids, mask, ids.roll(-1, 1), weights)


def row_length(progress: float) -> int:
    return next(length for length, end in STAGES if progress < end)


def learning_rate(step: int, steps: int, warmup: int) -> float:
    """Linear warm-up, then a cosine to a hundredth, as a factor."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def optimizers(model: TrainingLlama, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the blocks, Adam for the embedding and the norms."""
    matrices = [p for p in model.blocks.parameters() if p.ndim == 2]
    taken = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in taken]
    return [
        torch.optim.Muon(matrices, lr=rate, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def chunks(samples: Iterable[Sample], size: int) -> Iterator[list[Sample]]:
    iterator = iter(samples)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    samples = training_samples(random.Random(args.seed))

    if args.resume:
        tokenizer = AutoTokenizer.from_pretrained(args.out)
    else:
        plain = Encoder(build_tokenizer(()))
        texts = (plain.text(sample) for sample in itertools.islice(samples, TOKENIZER_SAMPLES))
        tokenizer = build_tokenizer(texts)
    encoder = Encoder(tokenizer)
    end_ids = tokenizer.convert_tokens_to_ids([TURN_END, END_OF_TEXT])
    config = llama_config(len(tokenizer), CONTEXT_LENGTH, end_ids, end_ids[1])
    model = TrainingLlama(config)
    compiled = torch.compile(model) if args.compile else model
    print(
        f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens",
        flush=True,
    )

    opts = optimizers(model, args.rate)
    first = 0
    if args.resume:
        state = torch.load(args.out / STATE_FILE)
        model.load_state_dict(state["model"])
        for opt, opt_state in zip(opts, state["optimizers"], strict=True):
            opt.load_state_dict(opt_state)
        first = state["step"]
    samples = training_samples(random.Random(f"{args.seed}/{first}"))
    documents = (d for chunk in chunks(samples, 256) for d in encoder.documents(chunk))
    length = 0
    started = time.monotonic()
    recent: list[float] = []
    for step in range(first, args.steps):
        if length != (wanted := row_length(step / args.steps)):
            length, packed = wanted, rows(documents, wanted)
        batch = batch_of(list(itertools.islice(packed, args.batch_tokens // length)))
        losses = model.losses(compiled(batch.ids, batch.mask), batch.targets)
        loss = (losses * batch.weights).sum() / batch.weights.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        factor = learning_rate(step, args.steps, args.warmup)
        for opt in opts:
            for group in opt.param_groups:
                group["lr"] = args.rate * factor
            opt.step()
            opt.zero_grad()
        recent.append(losses.detach()[batch.weights == 1.0].mean().item())
        if (step + 1) % args.log_every == 0 or step + 1 == args.steps:
            seconds = time.monotonic() - started
            mean = sum(recent) / len(recent)
            rate = (step + 1 - first) * args.batch_tokens / seconds
            print(
                f"step {step + 1:5} loss {mean:.4f} {seconds:5.0f} s {rate:6.0f} tokens/s",
                flush=True,
            )
            recent.clear()
        if (step + 1) % args.save_every == 0 or step + 1 == args.steps:
            save(model, config, tokenizer, end_ids, args.out)
            state = {
                "step": step + 1,
                "model": model.state_dict(),
                "optimizers": [opt.state_dict() for opt in opts],
            }
            torch.save(state, args.out / STATE_FILE)


def save(model: TrainingLlama, config: object, tokenizer: PreTrainedTokenizerFast,
         end_ids: list[int], out: Path) -> None:  # fmt: skip
    converted = to_transformers(model, config)
    converted.generation_config = GenerationConfig(eos_token_id=end_ids, pad_token_id=end_ids[1])
    converted.save_pretrained(out)
    tokenizer.save_pretrained(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/demo"), help="checkpoint directory")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=7000)
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--rate", type=float, default=5e-3, help="peak learning rate")
    parser.add_argument("--warmup", type=int, default=100, help="steps of linear warm-up")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--log-every", type=int, default=50)
    parser.add_argument("--save-every", type=int, default=400)
    parser.add_argument("--resume", action="store_true", help="go on from the state saved in --out")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
