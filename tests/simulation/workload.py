"""What happens in a world, chosen by its seed: settings, actions of clients, accidents."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from fastovms.app.serve import ServerConfig
from fastovms.config import EngineConfig, HttpConfig
from fastovms.server_config import SecurityConfig, ServiceConfig, StateConfig
from tests.simulation.disk import DISK_FAULTS
from tests.simulation.model import MODEL_FAULTS, Pace, continue_greedily
from tests.simulation.network import FAST, Line
from tests.simulation.prompt_cache import STATE_DIR
from tests.simulation.reloads import Reload
from tests.simulation.server import MODELS, Settings
from tests.simulation.world import changed


@dataclass(frozen=True)
class Action:
    """One client, and what it does from some time on.

    Attributes:
        at: seconds after the server's start.
        api: "completions", "chat", "messages", "responses", "socket" (responses over a WebSocket),
            "batch", "health", "load", "unload", "garbage", "knock" (at a port of TLS, without), or
            the path of an encoder's endpoint, of whose body `fields` has everything but the model.
        prompt: the text of the prompt, or the bytes of garbage.
        fields: further fields of the body.
        leaves: how the client leaves before the end: "reset", "close", "half-close"; "" = it stays.
        after_frames: with how many frames it leaves; 0 = after `after_seconds`.
        sip: see `ClientConnection`.
        repeats: how often it asks again on the same connection.
        pipelines: whether it asks all at once.
        model: the model that it asks.
        ends: how a response in the background, or a batch, is ended: "cancel", "delete" or "".
        lines: the requests of a batch.
        key: the API key that it sends; "" = none.
        converses: whether the turns are kept in a conversation.
        loses: whether its key or its model is away for some time.
        varies: whether its model changes.
        drip: the bytes that it sends at a time, and the seconds between; None = all at once. Those
            of a WebSocket message are a fragment each.
    """

    number: int
    at: float
    api: str
    prompt: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    leaves: str = ""
    after_frames: int = 0
    after_seconds: float = 0.0
    sip: tuple[int, float] | None = None
    repeats: int = 0
    pipelines: bool = False
    ends: str = ""
    converses: bool = False
    drip: tuple[int, float] | None = None
    model: str = MODELS[0]
    line: Line = FAST
    lines: tuple[Action, ...] = ()
    key: str = ""
    loses: bool = False
    varies: bool = False

    @property
    def headers(self) -> dict[str, str]:
        return headers_of(self.key)

    @property
    def streams(self) -> bool:
        return bool(self.fields.get("stream"))

    def __str__(self) -> str:
        given = changed(self)
        head = f"{given.pop('number')}: at {given.pop('at'):.3f} {given.pop('api')}"
        return f"{head} {given | {'lines': len(self.lines)} if self.lines else given}"


def is_greedy(action: Action) -> bool:
    """Returns whether a request's text is what `continue_greedily` returns."""
    constrained = {"use_beam_search", "structured_outputs"} & action.fields.keys()
    return action.fields.get("temperature") == 0 and not constrained


def greedy_text(action: Action) -> str:
    """Returns what a greedy request gets when nothing stops it."""
    prompt = PROMPTS[action.api].format(action.prompt).encode()
    tokens = continue_greedily(list(prompt), action.fields["max_tokens"], action.model)
    return bytes(tokens).decode(errors="ignore")


def headers_of(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


WRONG_CLOCKS: Final = {"clock forward": 100 * 365 * 86400.0, "clock back": -20 * 365 * 86400.0}
"""Seconds by which a server's clock is wrong for some time, by kinds of accidents."""

HARMLESS: Final = ("rot", "descriptors", *WRONG_CLOCKS)
"""Kinds of accidents that clients do not notice."""


@dataclass(frozen=True)
class Accident:
    """What happens to a server.

    Attributes:
        kind: "kill", "power" (it loses its power), "stop" (it is sent SIGTERM), or what its model
            does: "raise", "hang" or "nan", or its encoders: "encoder raise" or "encoder hang"; or
            what its disk does for some time: "full" (it takes nothing more), "write" or "sync"
            (which fail). A replica may be "cut" off the state. The files of the prompt cache "rot",
            which clients do not notice. For some time a server has no "descriptors" left, or a
            wrong clock (see `WRONG_CLOCKS`).
        slot: which of the replicas it is.
        pause: seconds until it is started again, or until the fault is over.
    """

    number: int
    at: float
    kind: str
    pause: float
    slot: int = 0

    def __str__(self) -> str:
        return (
            f"{self.number}: at {self.at:.3f} {self.kind} of {self.slot}, {self.pause} s of pause"
        )


@dataclass(frozen=True)
class Scenario:
    """A world's settings, its actions, its accidents, and what its operator changes.

    Attributes:
        first: what the operator's files say at first; None = all keys and all models.
    """

    seed: int
    settings: Settings
    actions: tuple[Action, ...]
    accidents: tuple[Accident, ...]
    ends_by: str
    reloads: tuple[Reload, ...] = ()
    first: Reload | None = None

    @property
    def files_at_first(self) -> tuple[Sequence[str], Sequence[tuple[str, str]], Sequence[str]]:
        """The keys and the models at first, and all that there ever are."""
        names = (*MODELS[: self.settings.num_models], *self.settings.encoders)
        keys, models = self.keys, tuple((name, "a") for name in names)
        if self.first is not None:
            keys, models = self.first.keys or keys, self.first.models or models
        return keys, models, (*self.keys, *names)

    @property
    def has_losses(self) -> bool:
        """Whether clients may lose a connection, or get an error, by an accident."""
        return any(accident.kind not in HARMLESS for accident in self.accidents)

    @property
    def has_bad_disk(self) -> bool:
        return any(accident.kind in (*DISK_FAULTS, "cut") for accident in self.accidents)

    @property
    def keys(self) -> tuple[str, ...]:
        return self.settings.keys

    @property
    def numbers(self) -> set[int]:
        return {event.number for event in self.events}

    @property
    def events(self) -> tuple[Action | Accident | Reload, ...]:
        return (*self.actions, *self.accidents, *self.reloads)

    def only(self, numbers: set[int]) -> Scenario:
        actions = tuple(action for action in self.actions if action.number in numbers)
        accidents = tuple(one for one in self.accidents if one.number in numbers)
        reloads = tuple(one for one in self.reloads if one.number in numbers)
        return replace(self, actions=actions, accidents=accidents, reloads=reloads)


_APIS = {
    "engine": ("completions", "completions", "chat"),
    "state": ("responses", "responses", "responses", "chat"),
    "all": (*2 * ("completions", "chat"), "messages", *3 * ("responses",), "health", "garbage"),
}
"""The endpoints that are asked in worlds which are hard for one part of the server, or for all."""

PROMPTS: Final = {
    "completions": "{}",
    "chat": "u:{};>",
    "messages": "u:{};<thinking False>>",
}
"""What the model is told of a prompt."""

_WORDS = "the quick brown fox jumps over lazy dogs and sings of summer rain".split()  # noqa: SIM905


def make_scenario(seed: int) -> Scenario:
    chance = random.Random(f"scenario {seed}")
    profile = chance.choice(("engine", "state", "all", "all"))
    block_size = chance.choice((4, 8, 16))
    max_model_len = chance.choice((128, 256))
    least = -(-max_model_len // block_size)
    num_models = chance.choice((1, 1, 1, 2, 3))
    num_replicas = 1
    if profile == "state" and num_models == 1:
        num_replicas = chance.choice((1, 1, 2, 3))
    more = chance.choice((1, least // 4) if profile == "engine" else (1, least // 2, 3 * least))
    settings = Settings(
        block_size=block_size,
        num_blocks=least + more,
        max_model_len=max_model_len,
        pace=Pace(
            chance.choice((0.01, 0.05) if profile == "state" else (1e-3, 0.01)),
            chance.choice((1e-5, 1e-3)),
        ),
        num_models=num_models,
        high_water=chance.choice((65536, 65536, 2000)),
        num_replicas=num_replicas,
        drifts=chance.choice(((0.0,), (-0.01, 0.0, 0.01))),
        max_loaded_models=chance.choice((1, 2)) if num_models > 1 else None,
        idle_unload=chance.choice((0.0, 1.0)),
        load_seconds=chance.choice((0.01, 1.0)),
        disk_seconds=chance.choice((0.0, 0.001, 0.05)),
        engine=EngineConfig(
            max_num_seqs=chance.choice((4, 16) if profile == "engine" else (2, 4, 16)),
            max_num_batched_tokens=chance.choice((16, 64, 256)),
            max_num_queued_requests=chance.choice((3, 1024, 1024)),
            enable_prefix_caching=chance.random() < 0.8,
            suffix_index_tokens=chance.choice((64, 4096)),
            enable_prompt_lookup=chance.choice((None, None, False)),
        ),
        config=ServerConfig(
            models=(),
            http=HttpConfig(
                max_write_buffer=chance.choice((30_000, 4 << 20)),
                ping_interval=chance.choice((0.25, 15.0)),
            ),
            security=SecurityConfig(enable_docs=False, ui=False, allowed_hosts="*"),
            service=ServiceConfig(engine_timeout=20.0),
            state=StateConfig(state_dir=str(STATE_DIR)),
        ),
    )
    chunks = [make_text(chance, 16).ljust(16, "-") for _ in range(2)]
    stems = [
        make_text(chance, chance.randint(1, max_model_len // 3)),
        *("".join(chance.choices(chunks, k=chance.randint(1, 4))) for _ in range(3)),
    ]
    hurry = chance.choice((0.0, 0.05) if profile == "engine" else (0.0, 0.05, 1.0))
    num_actions = chance.choice((8, 16) if profile == "engine" else (1, 4, 8, 16))
    line = FAST if profile == "engine" else Line.choose(chance)
    actions = tuple(
        _make_action(chance, number, stems, hurry, line, profile) for number in range(num_actions)
    )
    if settings.num_models > 1:
        names = MODELS[: settings.num_models]
        actions = tuple(replace(action, model=chance.choice(names)) for action in actions)
        actions = tuple(
            replace(action, api=chance.choice(("load", "unload")))
            if action.api == "health"
            else action
            for action in actions
        )
    accidents: tuple[Accident, ...] = ()
    kinds: tuple[str, ...] = ("kill", "kill", "power", "power", "stop", *DISK_FAULTS)
    if settings.num_replicas > 1:
        kinds = ("kill", "kill", "stop", "cut", "cut")
    elif settings.num_models == 1:
        kinds += MODEL_FAULTS
    if chance.random() < {"engine": 0.1, "state": 0.8, "all": 0.5}[profile]:
        accidents = tuple(
            Accident(
                num_actions + number,
                chance.uniform(0.05, 1.5 if profile == "state" else 0.3 + hurry),
                chance.choice(kinds),
                chance.choice((0.1, 2.0) if settings.num_replicas == 1 else (0.1, 2.0, 15.0)),
                chance.randrange(settings.num_replicas),
            )
            for number in range(chance.choice((1, 1, 2)))
        )
    ends_by = chance.choice(("drain", "idle", "idle"))
    scenario = Scenario(seed, settings, actions, accidents, ends_by)
    return _harden(scenario, random.Random(f"more {seed}"), profile)


def _harden(scenario: Scenario, chance: random.Random, profile: str) -> Scenario:
    """Returns a scenario with some actions that are harder, by a chance of their own."""
    actions = tuple(_harder(action, chance) for action in scenario.actions)
    number = max(scenario.numbers) + 1
    if profile != "state" and chance.random() < 0.15:
        at = chance.uniform(0.0, 0.05)
        crowd = chance.choice((30, 50))
        fields = {"temperature": 0, "max_tokens": 1}
        actions += tuple(
            Action(number + i, at, "completions", make_text(chance, chance.randint(1, 20)), fields)
            for i in range(crowd)
        )
    settings = scenario.settings
    number = max(number, *(action.number + 1 for action in actions))
    if settings.num_replicas == 1 and chance.random() < (0.05 if profile == "engine" else 0.25):
        actions += (make_batch(chance, number, settings),)
    if profile != "engine" and chance.random() < 0.2:
        number = max(number, *(action.number + 1 for action in actions))
        actions += tuple(_make_socket(chance, number + i) for i in range(chance.choice((1, 3))))
    if settings.num_replicas == 1 and chance.random() < 0.25:
        settings = replace(settings, prompt_cache=chance.choice((20_000, 1 << 20)))
        later = chance.choice((0.5, 5.0))  # prompts that were computed once are read then
        number = max(number, *(action.number + 1 for action in actions))
        actions += tuple(
            replace(action, number=number + i, at=action.at + later)
            for i, action in enumerate(scenario.actions)
            if action.api in PROMPTS
        )
        if settings.num_models == 1 and profile != "engine" and chance.random() < 0.5:
            number = max(action.number for action in actions) + 1
            accident = Accident(number, chance.uniform(0.3, 1.5), "power", 0.1)
            scenario = replace(scenario, accidents=(accident,))
    has_keys = settings.num_models == 1 and chance.random() < 0.3
    if has_keys:
        actions = tuple(replace(action, key=chance.choice(KEYS)) for action in actions)
    if any(action.sip for action in actions if action.api == "responses"):
        settings = replace(settings, high_water=1000)
    scenario = replace(scenario, actions=actions, settings=settings)
    scenario = with_keys(scenario) if has_keys else scenario
    is_steady = profile != "engine" and settings.num_models == settings.num_replicas == 1
    return _interrupt(scenario, chance) if is_steady and chance.random() < 0.4 else scenario


def with_keys(scenario: Scenario) -> Scenario:
    """Returns a scenario whose server takes only requests with one of `KEYS`."""
    config = scenario.settings.config
    config = replace(config, security=replace(config.security, api_keys=KEYS))
    settings = replace(scenario.settings, config=config, keys=KEYS)
    return replace(scenario, settings=settings)


def _interrupt(scenario: Scenario, chance: random.Random) -> Scenario:
    """Returns a scenario with long responses in the background that are cut off."""
    long = {"max_output_tokens": 60, "background": True, "stream": True}
    actions = tuple(
        replace(action, fields=action.fields | long, ends="", after_frames=0)
        if action.api == "responses"
        else action
        for action in scenario.actions
    )
    pace = Pace(chance.choice((0.02, 0.05)), 1e-5)
    at = min(action.at for action in actions) + chance.uniform(0.4, 1.0)
    number = max(scenario.numbers, default=0) + 1
    accident = Accident(number, at, chance.choice(("kill", "power")), chance.choice((0.1, 2.0)))
    return replace(
        scenario,
        settings=replace(scenario.settings, pace=pace),
        actions=actions,
        accidents=(accident,),
    )


def _make_socket(chance: random.Random, number: int) -> Action:
    fields = {"max_output_tokens": chance.choice((16, 30)), "temperature": 0}
    return Action(
        number,
        chance.uniform(0.0, 0.3),
        "socket",
        make_text(chance, chance.randint(1, 12)),
        fields | {"store": chance.random() < 0.5},
        chance.choice(("", "", "", "reset", "close")),
        after_seconds=chance.choice((0.05, 0.5)),
        repeats=chance.choice((0, 1, 3)),
        pipelines=chance.random() < 0.4,
        ends=chance.choice(("", "", "cancel")),
        line=Line.choose(chance),
    )


def make_batch(chance: random.Random, number: int, settings: Settings) -> Action:
    api, model = (
        chance.choice(("completions", "chat")),
        chance.choice(MODELS[: settings.num_models]),
    )
    lines = tuple(
        Action(
            line,
            0.0,
            api,
            make_text(chance, chance.randint(1, 40)),
            {"temperature": 0, "max_tokens": chance.choice((1, 5, 30)), "n": chance.choice((1, 2))},
            model=model,
        )
        for line in range(chance.choice((1, 5, 12)))
    )
    return batch_of(chance, number, model, lines)


def batch_of(chance: random.Random, number: int, model: str, lines: tuple[Action, ...]) -> Action:
    """Returns an action that runs a batch of lines for a model, and cancels it at times."""
    return Action(
        number,
        chance.uniform(0.0, 0.2),
        "batch",
        model=model,
        lines=lines,
        ends=chance.choice(("", "", "", "cancel")),
        after_seconds=chance.choice((0.0, 0.05, 1.0)),
        line=Line.choose(chance),
    )


_RULES: Final = ("[a-f ]{3,40}(ox|the)", "([a-z]+ (and|or) ){1,5}end", "(abc|abd){2,9}[.!]")
"""Regular expressions that texts must match."""

KEYS: Final = ("key-one", "key-two")


def _harder(action: Action, chance: random.Random) -> Action:
    if action.api == "responses":
        if chance.random() < 0.5:
            action = replace(action, fields=action.fields | {"temperature": 1.0})
        if action.streams and chance.random() < 0.3:
            line = replace(action.line, window=300)
            action = replace(action, sip=(chance.choice((100, 300)), 0.1), line=line)
        return action
    if action.api in ("completions", "chat") and chance.random() < 0.3:
        salt = chance.choice(("first", "second"))
        action = replace(action, fields=action.fields | {"cache_salt": salt})
    if action.api == "completions" and "stop" not in action.fields and chance.random() < 0.3:
        rules = {"regex": chance.choice(_RULES)}
        action = replace(action, fields=action.fields | {"structured_outputs": rules})
    if is_greedy(action):
        text, size = greedy_text(action), chance.choice((1, 2, 3))
        ends = [end for end in range(size, len(text)) if text.find(text[end - size : end]) > 3]
        if ends and chance.random() < 0.5:
            end = chance.choice(ends)
            action = replace(action, fields=action.fields | {"stop": [text[end - size : end]]})
    return action


def make_text(chance: random.Random, size: int) -> str:
    words = []
    while sum(map(len, words)) + len(words) < size:
        words.append(chance.choice(_WORDS))
    return " ".join(words)[:size] or "a"


def _make_action(
    chance: random.Random,
    number: int,
    stems: list[str],
    hurry: float,
    line: Line,
    profile: str,
) -> Action:
    at = chance.uniform(0.0, hurry)
    api = chance.choice(_APIS[profile])
    if profile != "engine" and chance.random() < 0.2:
        line = Line.choose(chance)
    if api == "garbage":
        return Action(number, at, api, chance.choice(_GARBAGE), line=line)
    if api == "health":
        return Action(number, at, api, line=line, repeats=chance.choice((0, 2)))
    prompt = chance.choice(stems) + make_text(chance, chance.randint(1, 12))
    if api == "responses":
        return Action(
            number,
            at,
            api,
            prompt,
            {
                "max_output_tokens": chance.choice((16, 20, 40, 60)),
                "temperature": 0,
                "stream": chance.random() < 0.6,
                "background": chance.random() < 0.7,
                "store": True,
            },
            after_frames=chance.choice((0, 0, 2, 5)),
            after_seconds=chance.choice((0.01, 0.3)),
            repeats=chance.choice((0, 0, 1, 2)),
            ends=chance.choice(("", "", "", "cancel", "delete")),
            converses=chance.random() < 0.4,
            line=line,
        )
    fields: dict[str, Any] = {"max_tokens": chance.choice((1, 3, 10, 25, 40, 100))}
    if chance.random() < 0.6:
        fields["stream"] = True
        if chance.random() < 0.6:
            fields["stream_options"] = {"include_usage": True}
    fields |= chance.choice(
        (
            {"temperature": 0},
            {"temperature": 0},
            {"temperature": 0, "n": 2},
            {"temperature": 1.0, "seed": chance.randrange(100)},
            {"temperature": 0.8, "seed": 7, "n": 3, "top_p": 0.9},
            {"temperature": 0, "use_beam_search": True, "n": chance.choice((2, 3))},
        )
    )
    if chance.random() < 0.4:
        fields["priority"] = chance.choice((-2, -1, 1))
    if api == "messages":
        fields = {"temperature": 0, "max_tokens": fields["max_tokens"]} | (
            {"stream": True} if fields.get("stream") else {}
        )
    if chance.random() < 0.35 and "use_beam_search" not in fields:
        fields["stop"] = [chance.choice(("e", "ox", "and", "\u00e4"))]
    if chance.random() < 0.05:
        prompt = (chance.choice("\x01\x01\x02") + prompt).ljust(13, "-")  # see `SimModel`
    leaves = chance.choice(("", "", "", "reset", "close", "half-close"))
    if profile == "engine" and chance.random() < 0.7:
        leaves = ""
    sip = None
    if chance.random() < 0.1:
        sip = (chance.choice((10, 100, 1000)), chance.choice((0.001, 0.5)))
    return Action(
        number,
        at,
        api,
        prompt,
        fields,
        leaves,
        chance.choice((0, 0, 1, 3)) if fields.get("stream") else 0,
        chance.choice((0.0, 0.001, 0.02, 0.2)),
        sip,
        0 if leaves else chance.choice((0, 0, 1, 2)),
        chance.random() < 0.3,
        drip=(chance.choice((1, 50)), 0.01) if chance.random() < 0.1 else None,
        line=line,
    )


_GARBAGE = (
    "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "hello\r\n\r\n",
    "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    "Content-Length: 3\r\n\r\n{x}",
    "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
    "GET /health HTTP/1.1\r\nHost: x\r\nX: " + 70_000 * "y" + "\r\n\r\n",
)
