"""What the request of an action gets when it is alone, and whether an answer is that."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from typing import Any, Final, NamedTuple

from fastovms.app.paged import engine_extensions
from fastovms.config import EngineConfig
from fastovms.engine.blocks import BlockManager
from fastovms.engine.engine import Engine
from fastovms.params import BeamSearch, GenerationRequest, Grammar, GrammarKind, SamplingParams
from fastovms.parts.beams import beam_token_limit
from tests.fakes import EOS
from tests.simulation.client import Answer, call
from tests.simulation.grammars import COMPILER
from tests.simulation.model import NAN, Pace, SimModel, continue_greedily
from tests.simulation.server import Port, Settings
from tests.simulation.workload import PROMPTS, Action, is_greedy
from tests.simulation.world import World


def prompt_tokens(action: Action) -> list[int]:
    return list(PROMPTS[action.api].format(action.prompt).encode())


def body_of(action: Action) -> dict[str, Any]:
    """Returns the body of an action's request."""
    fields = action.fields
    if action.api.startswith("/"):
        return {"model": action.model, **fields}
    if action.api == "completions":
        return {"model": action.model, "prompt": action.prompt, **fields}
    if action.api == "messages" and "stop" in fields:
        fields = {name: value for name, value in fields.items() if name != "stop"}
        fields["stop_sequences"] = action.fields["stop"]
    messages = [{"role": "user", "content": action.prompt}]
    return {"model": action.model, "messages": messages, **fields}


class Sample(NamedTuple):
    """What one sample must be.

    Attributes:
        num_tokens: its tokens with the end of text.
        is_cut: whether a stop string ends it.
    """

    text: str
    reason: str
    num_tokens: int
    is_cut: bool = False


@lru_cache(maxsize=4096)
def _drawn(
    prompt: tuple[int, ...], most: int, name: str, **fields: Any
) -> list[tuple[list[int], Sample]]:
    """Returns the samples of a request that an engine runs alone, without caches and drafts."""
    model = SimModel(16, Pace(0.0, 0.0), name)
    model.is_warm = True
    n = fields.get("n", 1)
    num_blocks = 4 + 2 * n * ((len(prompt) + most) // 16 + 2)
    model.allocate_cache(num_blocks)
    config = EngineConfig(
        enable_prefix_caching=False, enable_prompt_lookup=False, max_num_batched_tokens=4096
    )
    engine = Engine(
        model,
        config,
        num_blocks=num_blocks,
        max_model_len=16 * num_blocks,
        extensions=engine_extensions(model, config, COMPILER),
    )
    is_search, regex = fields.pop("use_beam_search", False), fields.pop("regex", None)
    params = SamplingParams(
        max_tokens=most,
        beam_search=BeamSearch(n) if is_search else None,
        eos_token_ids=frozenset({EOS}),
        grammar=None if regex is None else Grammar(GrammarKind.REGEX, regex),
        **fields,
    )
    engine.add(GenerationRequest("alone", list(prompt), params))
    tokens: list[list[int]] = [[] for _ in range(n)]
    samples: dict[int, Sample] = {}
    while engine.has_work:
        for _, output in engine.step():
            tokens[output.index] += output.token_ids
            if output.finish_reason is not None:
                text = bytes(tokens[output.index]).decode(errors="replace")
                reason = output.finish_reason.value
                samples[output.index] = Sample(text, reason, output.num_generated_tokens)
    return [(tokens[index], samples[index]) for index in range(n)]


class SentText(NamedTuple):
    """A prompt that a client has sent, and the tokens after it; None = these are not known."""

    prompt: list[int]
    continuation: list[int] | None


class SentTexts:
    """All prompts that clients have sent, by tenant and salt. They bound what a client may be told
    of the prefix cache.

    Args:
        repeats: whether a server may compute a prompt a second time and find it in a cache: one
            on disk, or in memory where the end of an answer could not be stored.
    """

    def __init__(self, *, repeats: bool) -> None:
        self._repeats = repeats
        self._texts: dict[tuple[str, str], list[SentText]] = {}

    def add(self, key: str, salt: str, text: SentText) -> SentText:
        self._texts.setdefault((key, salt), []).append(text)
        return text

    def add_prompt(self, action: Action) -> SentText:
        prompt, continuation = prompt_tokens(action), None
        if is_greedy(action) and not action.varies:
            continuation = continue_greedily(prompt, action.fields["max_tokens"], action.model)
        salt = action.fields.get("cache_salt", "")
        return self.add(action.key, salt, SentText(prompt, continuation))

    def most_cached(self, action: Action, own: SentText | None) -> int:
        """Returns how many tokens of an action's prompt other texts of its tenant begin with.

        Args:
            own: the text that does not count.
        """
        salt = action.fields.get("cache_salt", "")
        return self._most_known(action.key, salt, prompt_tokens(action), own)

    def faults_of_cached(self, key: str, own: SentText, num_cached: int) -> list[str]:
        """Returns what is wrong with the number of cached tokens of a prompt without a salt."""
        most = self._most_known(key, "", own.prompt, None if self._repeats else own)
        if num_cached <= most:
            return []
        return [f"{num_cached} tokens are cached, of which {key!r} has sent only {most}"]

    def _most_known(self, key: str, salt: str, prompt: list[int], own: SentText | None) -> int:
        most = 0
        for text in self._texts[key, salt]:
            if text is own:
                continue
            tokens = [*text.prompt, *(text.continuation or ())]
            pairs = zip(prompt, tokens, strict=False)
            size = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            is_open = text.continuation is None and size == len(text.prompt)
            most = max(most, len(prompt) if is_open else size)
        return most


@dataclass
class ActingClient:
    """One client of a world.

    Attributes:
        kept: what the server has acknowledged to any client.
        texts: the prompts of all clients.
    """

    world: World
    port: Port
    action: Action
    settings: Settings
    kept: list[Any]
    texts: SentTexts

    def fail(self, kind: str, text: str) -> None:
        self.world.fail(kind, f"{self.action}: {text}")

    async def call(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Asks as `call` does."""
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        line, all_headers = self.action.line, self.action.headers | headers
        return await call(self.world, self.port, line, method, path, body, all_headers)

    def send_text(self, prompt: str, most: int, *, is_known: bool = True) -> SentText:
        """Returns a prompt that is sent now, with its continuation if this is known."""
        tokens = list(prompt.encode())
        continuation = continue_greedily(tokens, most, self.action.model) if is_known else None
        return self.texts.add(self.action.key, "", SentText(tokens, continuation))

    def check_cached(self, sent: SentText, usage: Any) -> None:
        """Checks that what was cached of a prompt is its tenant's own."""
        key, cached = self.action.key, num_cached(usage)
        for fault in self.texts.faults_of_cached(key, sent, cached):
            self.fail("stranger", fault)


def _most_tokens(action: Action, settings: Settings) -> int:
    """Returns how many tokens a sample has at most; 0 = the request must be refused."""
    size, n = len(prompt_tokens(action)), action.fields.get("n", 1)
    most: int = max(0, min(action.fields["max_tokens"], settings.max_model_len - size))
    if "use_beam_search" not in action.fields:
        return most
    if n > min(settings.engine.max_num_seqs, settings.engine.token_budget):
        return 0
    blocks = BlockManager(settings.num_blocks, settings.block_size)
    return max(0, min(most, beam_token_limit(size, n, blocks) - size))


def samples_of(action: Action, settings: Settings) -> list[Sample]:
    """Returns what each choice must be; none = the request must be refused."""
    prompt, fields = prompt_tokens(action), action.fields
    n, stops = fields.get("n", 1), fields.get("stop", [])
    most = _most_tokens(action, settings)
    if not most:
        return []
    if is_greedy(action):
        return [_cut(continue_greedily(prompt, most, action.model), most, stops)] * n
    names = ("temperature", "top_p", "seed", "n", "use_beam_search")
    given = {name: fields[name] for name in names if name in fields}
    given |= fields.get("structured_outputs", {})
    drawn = _drawn(tuple(prompt), most, action.model, **given)
    if "use_beam_search" in fields:
        return [sample for _, sample in drawn]
    return [_cut(tokens, most, stops) for tokens, _ in drawn]


def _cut(tokens: list[int], most: int, stops: Iterable[str]) -> Sample:
    """Returns the sample of tokens that may have stop strings."""
    text, decoder = "", codecs.getincrementaldecoder("utf-8")("replace")
    for end in range(1, len(tokens) + 1):
        text += decoder.decode(bytes(tokens[end - 1 : end]))
        found = [text.index(stop) for stop in stops if stop in text]
        if found:
            return Sample(text[: min(found)], "stop", end, True)
    text = bytes(tokens).decode(errors="replace")
    if len(tokens) < most:
        return Sample(text, "stop", len(tokens) + 1)
    return Sample(text, "length", len(tokens))


def faults_of(
    action: Action, answer: Answer, settings: Settings, most_cached: int | None = None
) -> list[str]:
    """Returns what is wrong with a whole answer to a request for text.

    Args:
        most_cached: how many tokens of the prompt may have been cached; None = all but the last.
    """
    if not _most_tokens(action, settings):
        is_refused = answer.status == 400 or len(_errors(answer)) == 1  # behind a ping
        return [] if is_refused else [f"status {answer.status} of a request that cannot run"]
    if action.prompt.startswith(chr(NAN)) and len(prompt_tokens(action)) > 12:
        return _faults_of_failure(action, answer)
    expected = samples_of(action, settings)
    if answer.status != 200:
        return [f"status {answer.status}: {answer.body[:200]!r}"]
    prompt = prompt_tokens(action)
    is_drawn = action.fields["temperature"] and len(expected) > 1
    if is_drawn and len(set(expected)) == 1 and len(expected[0].text) > 9:
        return [f"all samples are {expected[0]}"]
    if most_cached is not None:
        cached = [usage for usage in map(num_cached, _usages(answer)) if usage > most_cached]
        if cached:
            return [f"{cached[0]} tokens are cached, of which only {most_cached} were sent before"]
    num_tokens = sum(sample.num_tokens for sample in expected)
    if action.api == "messages":
        return _faults_of_message(action, answer, expected[0], len(prompt))
    if action.streams:
        return _faults_of_stream(action, answer, expected, len(prompt), num_tokens)
    body = answer.json
    got = []
    for choice in body["choices"]:
        text = choice["message"]["content"] if action.api == "chat" else choice["text"]
        got.append((text or "", choice["finish_reason"]))
    faults = []
    if got != [(sample.text, sample.reason) for sample in expected]:
        faults.append(f"got {got}, not {expected}")
    return faults + _faults_of_usage(body["usage"], len(prompt), num_tokens)


def _usages(answer: Answer) -> list[Any]:
    """Returns the usages in an answer or in its events."""
    bodies = [frame for frame in answer.frames if frame != "[DONE]"] or [answer.json]
    return [body["usage"] for body in bodies if body.get("usage")]


def num_cached(usage: Any) -> int:
    """Returns how many tokens of the prompt came from a cache."""
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    return details.get("cached_tokens") or usage.get("cache_read_input_tokens") or 0


def _faults_of_usage(usage: Any, num_prompt: int, num_tokens: int) -> list[str]:
    told = (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"])
    right = (num_prompt, num_tokens, num_prompt + num_tokens)
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    faults = [] if told == right else [f"usage {told}, not {right}"]
    if not 0 <= cached < num_prompt:
        faults.append(f"{cached} of {num_prompt} tokens are cached")
    return faults


def _faults_of_stream(
    action: Action,
    answer: Answer,
    expected: list[Sample],
    num_prompt: int,
    num_tokens: int,
) -> list[str]:
    *frames, last = answer.frames or [None]
    if last != "[DONE]":
        return [f"the last frame is {str(last)[:200]}"]
    faults = []
    texts = ["" for _ in expected]
    reasons: list[list[str]] = [[] for _ in expected]
    usages = []
    for frame in frames:
        if "error" in frame:
            return [f"an error: {frame['error']}"]
        if frame.get("usage"):
            usages.append(frame["usage"])
        for choice in frame["choices"]:
            index = choice["index"]
            delta = choice["delta"].get("content") if action.api == "chat" else choice["text"]
            if reasons[index] and delta:
                faults.append(f"text after the end of choice {index}: {delta!r}")
            texts[index] += delta or ""
            if choice["finish_reason"]:
                reasons[index].append(choice["finish_reason"])
    got = list(zip(texts, reasons, strict=True))
    if got != [(sample.text, [sample.reason]) for sample in expected]:
        faults.append(f"got {got}, not {expected}")
    wants_usage = action.fields.get("stream_options", {}).get("include_usage", False)
    if len(usages) != wants_usage:
        faults.append(f"{len(usages)} usages")
    for usage in usages:
        faults += _faults_of_usage(usage, num_prompt, num_tokens)
    return faults


_STOP_REASONS: Final = {"stop": "end_turn", "length": "max_tokens"}


def _faults_of_message(
    action: Action, answer: Answer, expected: Sample, num_prompt: int
) -> list[str]:
    """Returns what is wrong with an answer of the Messages API."""
    text, reason, num_tokens, is_cut = expected
    stop_reason = "stop_sequence" if is_cut else _STOP_REASONS[reason]
    if reason == "length" and num_tokens < action.fields["max_tokens"]:
        stop_reason = "model_context_window_exceeded"
    faults = []
    if action.streams:
        kinds = [frame["type"] for frame in answer.frames if frame["type"] != "ping"]
        if "error" in kinds:
            return [f"an error: {answer.frames[-1]}"]
        parts = (["content_block_start"], ["content_block_stop"]) if text else ([], [])
        deltas = [frame for frame in answer.frames if frame["type"] == "content_block_delta"]
        in_order = ["message_start", *parts[0], *["content_block_delta"] * len(deltas), *parts[1]]
        if kinds != [*in_order, "message_delta", "message_stop"]:
            faults.append(f"the events are {kinds}")
        got = "".join(frame["delta"]["text"] for frame in deltas)
        last = next((f for f in answer.frames if f["type"] == "message_delta"), None)
        if last is None:
            return [*faults, "there is no message_delta"]
        got_reason, usage = last["delta"]["stop_reason"], last["usage"]
    else:
        body = answer.json
        got = "".join(block["text"] for block in body["content"])
        got_reason, usage = body["stop_reason"], body["usage"]
    if (got, got_reason, usage["output_tokens"]) != (text, stop_reason, num_tokens):
        told = (got, got_reason, usage)
        faults.append(f"got {told}, not {(text, stop_reason, num_tokens)}")
    num_input = usage["input_tokens"] + (usage.get("cache_read_input_tokens") or 0)
    if num_input != num_prompt:
        faults.append(f"usage {usage} for {num_prompt} tokens")
    return faults


def _faults_of_failure(action: Action, answer: Answer) -> list[str]:
    """Returns what is wrong with the answer to a prompt of which the model says NaN."""
    if not action.streams or answer.status != 200:
        return [] if answer.status == 500 else [f"status {answer.status} where logits are NaN"]
    num_errors = len(_errors(answer))
    return [] if num_errors == 1 else [f"{num_errors} errors where logits are NaN"]


def _errors(answer: Answer) -> list[Any]:
    return [frame for frame in answer.frames if frame != "[DONE]" and "error" in frame]
