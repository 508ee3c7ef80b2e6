"""Chooses a world by its seed: one of `workload`, perhaps with more that is hard for one part."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

from fastovms.config import EncoderConfig
from tests.simulation.encoders import ENCODERS
from tests.simulation.encoding import make_encoding, make_encoding_batch
from tests.simulation.kernels import KINDS, Switch
from tests.simulation.model import Pace
from tests.simulation.network import Line
from tests.simulation.reloads import BROKEN, VARIANTS, Reload
from tests.simulation.server import MODELS, Settings
from tests.simulation.speech import SPEECH
from tests.simulation.transcribing import make_leavers, make_speech
from tests.simulation.workload import (
    KEYS,
    PROMPTS,
    WRONG_CLOCKS,
    Accident,
    Action,
    Scenario,
    batch_of,
    greedy_text,
    is_greedy,
    make_batch,
    make_text,
    with_keys,
)
from tests.simulation.workload import make_scenario as make_common_scenario


def make_scenario(seed: int) -> Scenario:
    scenario = make_common_scenario(seed)
    chance = random.Random(f"further {seed}")
    scenario = _interrupt_sockets(scenario, chance)
    actions = tuple(_stopped_at_blank(action, chance) for action in scenario.actions)
    scenario = replace(scenario, actions=actions)
    kind = chance.random()
    if scenario.settings.num_replicas == 1 and kind < 0.15:
        scenario = _with_visits(scenario, chance)
    elif scenario.settings.num_models == 1 and kind < 0.3:
        scenario = _with_other_keys(scenario, chance)
    elif scenario.settings.num_models > 1 and kind < 0.6:
        scenario = _with_other_models(scenario, chance)
    scenario = _with_tls(scenario, chance) if chance.random() < 0.12 else scenario
    chance = random.Random(f"encoders 1286 {seed}")  # no world that failed before has them
    scenario = _with_encoders(scenario, chance) if chance.random() < 0.15 else scenario
    chance = random.Random(f"switches {seed}")
    if chance.random() < 0.25:
        switch = Switch(chance.choice(KINDS), chance.choice((0.02, 0.1, 0.5, 2.0)))
        scenario = replace(scenario, settings=replace(scenario.settings, switch=switch))
    chance = random.Random(f"twins {seed}")
    settings = scenario.settings
    is_plain = settings.num_models == settings.num_replicas == 1 and not scenario.reloads
    if is_plain and chance.random() < 0.1:
        return _with_twins(scenario, chance)
    chance = random.Random(f"shortages {seed}")
    return _with_shortages(scenario, chance) if chance.random() < 0.15 else scenario


def _interrupt_sockets(scenario: Scenario, chance: random.Random) -> Scenario:
    """Returns a scenario in which WebSocket messages may come in fragments, so that clients also
    leave in the middle of a message."""
    actions = tuple(
        replace(action, drip=(chance.choice((1, 7)), chance.choice((0.001, 0.03))))
        if action.api == "socket" and chance.random() < 0.5
        else action
        for action in scenario.actions
    )
    return replace(scenario, actions=actions)


def _stopped_at_blank(action: Action, chance: random.Random) -> Action:
    """Returns an action with a stop string that ends in a blank, which chats hold back."""
    if not (action.api in PROMPTS and is_greedy(action) and chance.random() < 0.2):
        return action
    text = greedy_text(action)
    ends = [end for end in range(3, len(text)) if text.find(text[end - 1 : end + 1]) == end - 1]
    blanks = [text[end - 1 : end + 1] for end in ends if text[end] == " "]
    if not blanks:
        return action
    return replace(action, fields=action.fields | {"stop": [chance.choice(blanks)]})


def _with_visits(scenario: Scenario, chance: random.Random) -> Scenario:
    """Returns a scenario with a prompt cache on disk and clients that come back with the same
    prompts: they find them in memory, on disk, damaged on disk, or not at all."""
    settings = scenario.settings
    least = -(-settings.max_model_len // settings.block_size)
    settings = replace(
        settings,
        prompt_cache=chance.choice((10_000, 1 << 20, 1 << 20)),
        num_blocks=least + chance.choice((0, 1, least)),
        engine=replace(settings.engine, enable_prefix_caching=True, max_num_queued_requests=1024),
    )
    scenario = replace(scenario, settings=settings, accidents=())
    keys: tuple[str, ...] = ("",)
    if scenario.keys or (settings.num_models == 1 and chance.random() < 0.7):
        scenario, keys = with_keys(scenario), KEYS
    longest = settings.max_model_len // 2
    texts = [make_text(chance, chance.randint(longest // 3, longest)) for _ in range(3)]
    others = scenario.actions[: chance.choice((0, 3))]
    others = tuple(replace(action, key=chance.choice(keys)) for action in others)
    number = _next_number(scenario.events)
    at, visits = 0.0, []
    for _ in range(chance.choice((12, 18))):
        at += chance.choice((0.0, 0.1, 0.5))
        visits.append(
            Action(
                number + len(visits),
                at,
                chance.choice(tuple(PROMPTS)),
                chance.choice(texts) + chance.choice(("", "", "?")),
                {"temperature": 0, "max_tokens": chance.choice((1, 10))},
                key=chance.choice(keys),
            )
        )
    number += len(visits)
    kinds = ("rot", "rot", "power", "kill", "stop")
    accidents = tuple(
        Accident(number + i, chance.uniform(0.2, at), chance.choice(kinds), 0.1)
        for i in range(chance.choice((0, 1, 1, 3)))
    )
    return replace(scenario, actions=(*others, *visits), accidents=accidents)


def _with_twins(scenario: Scenario, chance: random.Random) -> Scenario:
    """Returns a scenario whose two keys send the same prompts, before and after a kill that cuts
    off responses in the background, most of which have not begun."""
    settings = scenario.settings
    engine = replace(
        settings.engine,
        enable_prefix_caching=True,
        max_num_seqs=chance.choice((1, 2)),
        max_num_queued_requests=1024,
    )
    pace = Pace(chance.choice((0.02, 0.05)), 1e-5)
    settings = replace(settings, engine=engine, pace=pace, prompt_cache=0)
    scenario = with_keys(replace(scenario, settings=settings))
    texts = [make_text(chance, settings.max_model_len // 3) for _ in range(chance.choice((2, 4)))]
    number, at = _next_number(scenario.events), chance.uniform(0.5, 1.2)
    twins = [
        Action(
            number + i,
            chance.uniform(0.0, 0.1),
            "responses",
            texts[i // 2],
            {
                "max_output_tokens": chance.choice((20, 60)),
                "temperature": 0,
                "stream": chance.random() < 0.5,
                "background": True,
                "store": True,
            },
            converses=chance.random() < 0.2,
        )
        for i in range(2 * len(texts))
    ]
    number += len(twins)
    live = {"temperature": 0, "max_tokens": chance.choice((1, 10))}
    twins += [
        Action(number + i, at + chance.uniform(0.0, 2.0), "chat", texts[i], live)
        for i in range(chance.choice((0, 2)))
    ]
    number += len(twins)
    twins = [replace(action, key=KEYS[i % 2]) for i, action in enumerate(twins)]
    if chance.random() < 0.5:
        asked = Action(number, at + 0.5, "chat", make_text(chance, 40), live, key=KEYS[1])
        lines = (replace(asked, number=0, key=""),)
        batch = batch_of(chance, number + 1, asked.model, lines)
        twins += [asked, replace(batch, at=at + 1.0, key=KEYS[0], ends="")]
        number += 2
    others = scenario.actions[: chance.choice((0, 3))]
    actions = (*(replace(action, key=chance.choice(KEYS)) for action in others), *twins)
    kill = Accident(number, at, chance.choice(("kill", "power")), 0.1)
    return replace(scenario, actions=actions, accidents=(kill,))


def _with_other_keys(scenario: Scenario, chance: random.Random) -> Scenario:
    """Returns a scenario whose operator removes keys, and adds keys."""
    scenario = with_keys(scenario)
    keys = (*KEYS, "key-three")
    settings = replace(scenario.settings, keys=keys, has_files=True)
    actions = _repeated(scenario, chance)
    if settings.num_replicas == 1 and chance.random() < 0.5:
        batch = make_batch(chance, _next_number((*actions, *scenario.accidents)), settings)
        long = {"max_tokens": 30}  # so that it runs when its key is removed
        lines = tuple(replace(line, fields=line.fields | long) for line in batch.lines)
        actions += (replace(batch, lines=lines, ends=""),)
    at, number = 0.0, _next_number((*actions, *scenario.accidents))
    reloads: list[Reload] = []
    for _ in range(chance.choice((1, 2, 4))):
        at += chance.uniform(0.05, 1.0)
        chosen = tuple(chance.sample(keys, chance.choice((1, 2, 2, 3))))
        is_bad = chance.random() < 0.15
        reloads.append(Reload(number + len(reloads), at, chosen, is_bad=is_bad))
    settings, actions = _slowed(settings, actions, chance)
    always = set(KEYS).intersection(*(reload.keys for reload in reloads if not reload.is_bad))
    actions = tuple(replace(action, key=chance.choice(keys)) for action in actions)
    actions = tuple(replace(action, loses=action.key not in always) for action in actions)
    return replace(
        scenario,
        settings=settings,
        actions=actions,
        reloads=tuple(reloads),
        first=Reload(0, 0.0, KEYS),
    )


def _with_other_models(scenario: Scenario, chance: random.Random) -> Scenario:
    """Returns a scenario whose operator adds, removes, changes and breaks models."""
    settings = scenario.settings
    names = MODELS[: settings.num_models]
    max_loaded_models = chance.choice((None, None, 1, 2))
    settings = replace(
        settings,
        max_loaded_models=max_loaded_models,
        idle_unload=0.0 if max_loaded_models is None else settings.idle_unload,
        has_files=True,
        poll_interval=chance.choice((0.0, 0.5)),
    )
    ways = ("signal", "request", "file") if settings.poll_interval else ("signal", "request")
    settings, actions = _slowed(settings, _repeated(scenario, chance), chance)
    number = _next_number((*actions, *scenario.accidents))
    reloads: list[Reload] = []
    first = Reload(0, 0.0, models=_choose_models(names, VARIANTS[:1], chance))
    at = 0.0
    for _ in range(chance.choice((1, 2, 4))):
        at += chance.uniform(0.05, 1.0)
        models = _choose_models(names, (*VARIANTS, *VARIANTS, BROKEN), chance)
        by, is_bad = chance.choice(ways), chance.random() < 0.15
        reloads.append(Reload(number + len(reloads), at, (), models, by, is_bad))
    lists = [reload.models for reload in (first, *reloads) if not reload.is_bad]
    states = {name: {dict(models).get(name, BROKEN) for models in lists} for name in names}
    lost = {name for name in names if BROKEN in states[name]}
    varying = {name for name in names if not states[name] <= {VARIANTS[0], BROKEN}}
    actions = tuple(
        replace(action, loses=action.model in lost, varies=action.model in varying)
        for action in actions
        # The texts of these must be known in advance.
        if not (
            (action.api in ("batch", "socket") and action.model in lost | varying)
            or (action.api == "responses" and action.model in varying)
        )
    )
    return replace(
        scenario,
        settings=settings,
        actions=actions,
        accidents=scenario.accidents if settings.loads_on_demand else (),
        reloads=tuple(reloads),
        first=first,
    )


def _with_tls(scenario: Scenario, chance: random.Random) -> Scenario:
    """Returns a scenario whose server speaks TLS, with clients that do not, and perhaps with other
    certificates after some time."""
    number = _next_number(scenario.events)
    knocks = [
        Action(
            number + i,
            chance.uniform(0.0, 1.0),
            "knock",
            chance.choice(_KNOCKS),
            leaves=chance.choice(("", "", "reset", "close")),
            after_seconds=chance.choice((0.0, 0.1, 5.0)),
            line=Line.choose(chance),
        )
        for i in range(chance.choice((0, 2, 4)))
    ]
    number += len(knocks)
    actions = (*scenario.actions, *knocks)
    reloads = list(scenario.reloads)
    if chance.random() < 0.5:
        for i in range(chance.choice((1, 3))):
            at, is_bad = chance.uniform(0.05, 2.0), chance.random() < 0.3
            reloads.append(Reload(number + i, at, certificate=chance.choice("01"), is_bad=is_bad))
        actions = _repeated(replace(scenario, actions=actions, reloads=tuple(reloads)), chance)
    settings = replace(scenario.settings, has_tls=True)
    reloads.sort(key=lambda reload: reload.at)
    return replace(scenario, settings=settings, actions=actions, reloads=tuple(reloads))


def _with_encoders(scenario: Scenario, chance: random.Random) -> Scenario:
    """Returns a scenario with embedding models and rerankers, perhaps also a model of speech, and
    clients that ask them."""
    texts = tuple(chance.sample(tuple(ENCODERS), chance.choice((1, 2, 3))))
    names = (*texts, SPEECH) if chance.random() < 0.4 else texts
    settings = replace(
        scenario.settings,
        encoders=names,
        encoder=EncoderConfig(
            normalize=chance.random() < 0.7,
            truncate=chance.random() < 0.3,
            query_instruction=chance.choice(("", "q: ")),
            document_instruction=chance.choice(("", "d: ")),
            max_batch_tokens=chance.choice((16, 64, 256, 1024)),
        ),
        num_segments=chance.choice((1, 3, 8)),
    )
    number = _next_number(scenario.events)
    hurry = chance.choice((0.0, 0.05, 1.0, 3.0))
    asking = [
        make_encoding(chance, number + i, chance.uniform(0.0, hurry), texts)
        for i in range(chance.choice((4, 8, 16)))
    ]
    number += len(asking)
    if SPEECH in names:
        asking += [
            make_speech(chance, number + i, chance.uniform(0.0, hurry))
            for i in range(chance.choice((4, 8, 16)))
        ]
        number += len(asking)
        if chance.random() < 0.3:
            engine = replace(settings.engine, max_num_queued_requests=3)
            settings = replace(settings, engine=engine)
            asking += make_leavers(chance, number)
            number += len(asking)
    has_batch = settings.num_replicas == 1 and not scenario.reloads and chance.random() < 0.5
    if has_batch and "vectors" in texts:
        asking.append(make_encoding_batch(chance, number))
        number += 1
    keys = scenario.keys or ("",)
    actions = [replace(action, key=chance.choice(keys)) for action in asking]
    accidents, reloads, first = scenario.accidents, scenario.reloads, scenario.first
    if first is not None and first.models:
        first = replace(first, models=(*first.models, *((name, "a") for name in names)))
        reloads = tuple(_with_variants(reload, names, chance) for reload in reloads)
    is_steady = settings.num_models == settings.num_replicas == 1 and not settings.has_files
    if is_steady and chance.random() < 0.2:
        at, kind = chance.uniform(0.05, 1.0), chance.choice(("encoder raise", "encoder hang"))
        accidents = (Accident(number, at, kind, 0.1),)
    return replace(
        scenario,
        settings=settings,
        actions=(*scenario.actions, *actions),
        accidents=accidents,
        reloads=reloads,
        first=first,
    )


def _with_shortages(scenario: Scenario, chance: random.Random) -> Scenario:
    """Returns a scenario whose server has a wrong clock, or no descriptors, for some time."""
    number = _next_number(scenario.events)
    accidents = tuple(
        Accident(
            number + i,
            chance.uniform(0.0, 2.0),
            chance.choice(("descriptors", *WRONG_CLOCKS)),
            chance.choice((0.1, 1.0, 5.0)),
        )
        for i in range(chance.choice((1, 2, 3)))
    )
    return replace(scenario, accidents=(*scenario.accidents, *accidents))


def _with_variants(reload: Reload, names: Sequence[str], chance: random.Random) -> Reload:
    """Returns a reload of a list of models that has encoders too, some of them changed, broken or
    away."""
    variants = [(name, chance.choice(("a", "a", *VARIANTS, BROKEN, ""))) for name in names]
    there = ((name, variant) for name, variant in variants if variant)
    return replace(reload, models=(*reload.models, *there)) if reload.models else reload


_KNOCKS = (
    "",
    "",
    "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "\x16\x03\x01\x02",
    "\x16\x03\x01\x00\x04abcd",
)


def _choose_models(
    names: Sequence[str], variants: Sequence[str], chance: random.Random
) -> tuple[tuple[str, str], ...]:
    chosen = chance.sample(names, chance.randint(1, len(names)))
    return tuple((name, chance.choice(variants)) for name in chosen)


def _slowed(
    settings: Settings, actions: tuple[Action, ...], chance: random.Random
) -> tuple[Settings, tuple[Action, ...]]:
    """Returns settings and actions, half of the time with a slow model and long streams, which are
    under way when something changes."""
    if chance.random() < 0.5:
        return settings, actions
    long = {"max_tokens": 100, "stream": True, "n": 1}
    return replace(settings, pace=Pace(0.05, 1e-5)), tuple(
        replace(action, fields=action.fields | long)
        if action.api == "completions" and is_greedy(action) and chance.random() < 0.5
        else action
        for action in actions
    )


def _repeated(scenario: Scenario, chance: random.Random) -> tuple[Action, ...]:
    """Returns the actions of a scenario, and some of them once more at later times."""
    number = _next_number(scenario.events)
    again = [action for action in scenario.actions if action.api in PROMPTS][:8]
    return scenario.actions + tuple(
        replace(action, number=number + i, at=chance.uniform(0.3, 3.0))
        for i, action in enumerate(again)
    )


def _next_number(events: Iterable[Action | Accident | Reload]) -> int:
    return max((event.number for event in events), default=0) + 1
