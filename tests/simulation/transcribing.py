"""Clients that send audio to be transcribed, and what they must get."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from fastovms.parts.speech.transcript import Samples, SpeechParams
from tests.simulation.client import FORM, Answer, form_of, render
from tests.simulation.network import FAST, Line
from tests.simulation.speech import (
    BAD,
    BROKEN_FILE,
    DEADLY,
    LANGUAGES,
    LEAST,
    RATE,
    SLOW,
    SPEECH,
    WINDOW,
    read_window,
    samples_of,
)
from tests.simulation.workload import Action

_PATHS: Final = tuple(
    f"{prefix}/audio/{kind}"
    for prefix in ("/v1", "/v3", "/v3/v1")
    for kind in ("transcriptions", "transcriptions", "translations")
)


def make_speech(chance: random.Random, number: int, at: float) -> Action:
    """Returns an action that sends an audio."""
    kinds = (*20 * ("audio",), SLOW, BAD, BAD, DEADLY, BROKEN_FILE)
    seconds = chance.choice((0.1, 1.0, 1.0, 29.9, 30.0, 30.1, 45.0, 100.0))
    fields: dict[str, Any] = {"file": f"{chance.choice(kinds)} {seconds} {chance.randrange(50)}"}
    form = chance.choice(("json", "json", "text", "verbose_json"))
    if form != "json" or chance.random() < 0.5:
        fields["response_format"] = form
    if form != "verbose_json" and chance.random() < 0.5:
        fields["stream"] = True
    if chance.random() < 0.3:
        fields["language"] = chance.choice(LANGUAGES)
    if chance.random() < 0.3:
        fields["prompt"] = "a prompt"
    if chance.random() < 0.3:
        fields |= {"temperature": 0.5, "seed": chance.randrange(3)}
    leaves = chance.choice((*4 * ("",), "reset", "close", "half-close"))
    return Action(
        number,
        at,
        chance.choice(_PATHS),
        fields=fields,
        leaves=leaves,
        after_seconds=chance.choice((0.0, 0.02, 0.1, 0.5)),
        repeats=0 if leaves else chance.choice((0, 0, 1)),
        model=SPEECH,
        line=Line.choose(chance),
    )


def make_leavers(chance: random.Random, number: int) -> list[Action]:
    """Returns actions that send audio and leave, one after the other, while another audio is
    read."""
    staying = make_speech(chance, number, 0.0)
    file = {"file": f"{SLOW} 30.0 {chance.randrange(50)}"}
    staying = replace(staying, fields=file, leaves="", line=FAST)
    leaving = (
        make_speech(chance, number + i, chance.uniform(0.1, 0.3) + i * 0.1) for i in range(1, 13)
    )
    return [
        staying,
        *(
            replace(action, leaves=chance.choice(("reset", "close")), repeats=0, after_seconds=0.1)
            for action in leaving
        ),
    ]


def render_speech(action: Action) -> bytes:
    """Returns the request of an action that sends an audio."""
    parts = {}
    for name, value in {"model": action.model, **action.fields}.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        parts[f'name="{name}"' + '; filename="a.wav"' * (name == "file")] = text.encode()
    headers = {"Content-Type": FORM, **action.headers}
    return render("POST", action.api, form_of(parts), headers)


def faults_of_speech(action: Action, answer: Answer, weights: str) -> list[str]:
    """Returns what is wrong with a whole answer.

    Args:
        weights: the name of the weights of the model.
    """
    fields = action.fields
    kind = fields["file"].split()[0]
    wrong = {BROKEN_FILE: (400, "no audio"), BAD: (500, "hears nothing"), DEADLY: (500, "SIGKILL")}
    if kind in wrong:
        status, reason = wrong[kind]
        is_told = reason in (str(answer.frames) if answer.frames else answer.body.decode())
        is_right = is_told and (answer.status == status or (fields.get("stream") and answer.frames))
        return (
            [] if is_right else [f"status {answer.status} of {kind} audio: {answer.body[:200]!r}"]
        )
    if answer.status != 200:
        return [f"status {answer.status}: {answer.body[:200]!r}"]
    samples = samples_of(fields["file"])
    is_verbose = fields.get("response_format") == "verbose_json"
    text, segments, language = _heard(action, samples, weights, has_segments=is_verbose)
    usage = {"type": "duration", "seconds": -(-len(samples) // RATE)}
    if fields.get("stream"):
        *deltas, done, end = answer.frames
        said = "".join(event["delta"] for event in deltas)
        right = {"type": "transcript.text.done", "text": text, "usage": usage}
        is_right = (said.rstrip(), done, end) == (text, right, "[DONE]")
        return [] if is_right else [f"got {answer.frames}, not {text!r}"]
    if fields.get("response_format") == "text":
        is_right = answer.body.decode() == f"{text}\n"
        return [] if is_right else [f"got {answer.body!r}, not {text!r}"]
    body, right = answer.json, {"text": text, "usage": usage}
    if is_verbose:
        translates = action.api.endswith("translations")
        right["task"] = "translate" if translates else "transcribe"
        right["language"] = "en" if translates else language
        right["duration"] = round(len(samples) / RATE, 2)
        told = [(s["start"], s["end"], s["text"]) for s in body.pop("segments")]
        if told != segments:
            return [f"the segments are {told}, not {segments}"]
    return [] if body == right else [f"got {body}, not {right}"]


def _heard(
    action: Action, samples: Samples, weights: str, *, has_segments: bool
) -> tuple[str, Sequence[tuple[float, float, str]], str | None]:
    """Returns the text of an audio, its segments, and its language."""
    fields = action.fields
    language, prompt = fields.get("language"), fields.get("prompt", "")
    has_times = has_segments or len(samples) > WINDOW
    text, segments, start = "", [], 0
    while start < len(samples) and (not start or len(samples) - start >= LEAST):
        params = SpeechParams(
            language=language,
            prompt=prompt,
            translates=action.api.endswith("translations"),
            temperature=fields.get("temperature", 0.0),
            seed=fields.get("seed", 0),
        )
        window = samples[start : start + WINDOW]
        found = read_window(weights, window, params, has_times)
        language, prompt = found.language, ""
        text += found.text
        offset = start / RATE
        segments += [
            (round(s.start + offset, 2), round(s.end + offset, 2), s.text) for s in found.segments
        ]
        is_last = start + len(window) >= len(samples)
        start += len(window) if is_last else round(found.segments[-1].end * RATE)
    return text.strip(), segments, language
