"""The settings of a chat in a terminal."""

from __future__ import annotations

from dataclasses import dataclass

from fastovms.setting import SWITCH, setting, texts


@dataclass(frozen=True, slots=True)
class TerminalConfig:
    """The initial settings of a terminal chat; the chat's commands change most of them."""

    # fmt: off
    model: str | None = setting(None, texts("NAME"),
        "name of the model in requests (default: the server's first model)")
    system: str | None = setting(None, texts("TEXT"), "system message of the chat")
    api_key: str | None = setting(None, texts("KEY"),
        "API key of the server (default: the environment variable OPENAI_API_KEY)")
    insecure: bool = setting(False, SWITCH, "accept any TLS certificate of the server")
    # fmt: on
