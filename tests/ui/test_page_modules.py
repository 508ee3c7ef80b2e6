"""The page's modules that need no page: what they compute, in a real browser."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.ui.browser import LOAD, UiServer, Window, window


@pytest.fixture(scope="module")
def opened(browser: Browser, quick_server: UiServer) -> Any:
    with window(browser, quick_server) as opened:
        opened.open()
        yield opened


def call(opened: Window, module: str, body: str, *arguments: object) -> Any:
    """Runs JavaScript that has the module's names in `m` and the arguments in `given`."""
    script = f"async ([name, given]) => {{ const m = {LOAD}(name); {body} }}"
    return opened.page.evaluate(script, [module, list(arguments)])


def family(*chats: tuple[str, str | None, int | None]) -> list[dict[str, Any]]:
    made = []
    for id, parent, at in chats:
        metadata = {} if parent is None else {"parent": parent, "at": str(at)}
        made.append({"id": id, "metadata": metadata})
    return made


FAMILY = family(("a", None, None), ("b", "a", 4), ("c", "b", 6), ("d", "a", 4), ("e", "a", 0))


@pytest.mark.parametrize(
    ("shown", "at", "ids", "current", "parent"),
    [
        ("a", 4, ["a", "b", "d"], 0, "a"),
        ("b", 4, ["a", "b", "d"], 1, "a"),
        ("c", 4, ["a", "b", "d"], 1, "a"),  # it goes back to b there
        ("c", 6, ["b", "c"], 1, "b"),
        ("d", 6, ["d"], 0, "d"),
        ("c", 0, ["a", "e"], 0, "a"),
        ("c", 8, ["c"], 0, "c"),
    ],
)
def test_branches_of_a_chat_are_found_at_a_position(
    opened: Window, shown: str, at: int, ids: list[str], current: int, parent: str
) -> None:
    found = call(
        opened,
        "session/branches.js",
        "const [chats, shown, at] = given; const all = new Map(chats.map((one) => [one.id, one]));"
        "const chat = all.get(shown);"
        "return [m.variantsAt(all, chat, at), m.departure(all, chat, at), m.rootOf(all, chat).id];",
        FAMILY,
        shown,
        at,
    )
    assert found == [{"ids": ids, "current": current}, {"parent": parent, "at": str(at)}, "a"]


def scrape(generated: int, prompts: int, hits: int, waits: list[int]) -> str:
    label = 'model_name="m"'
    numbers = {
        "generation_tokens_total": generated,
        "prompt_tokens_total": prompts,
        "prefix_cache_hits_total": hits,
        "prefix_cache_queries_total": prompts,
        "step_seconds_count": generated,
        "num_requests_running": 2,
        "kv_cache_usage_perc": 0.25,
    }
    lines = [f"fastovms_{name}{{{label}}} {value}" for name, value in numbers.items()]
    encoded = {
        "prompt_tokens_total": 9 * prompts,
        "step_seconds_count": 7 * generated,
        "encoder_texts_total": generated,
        "encoder_padding_tokens_total": prompts,
        "encoder_batch_size_count": generated // 4,
    }
    lines += [f'fastovms_{name}{{model_name="e"}} {value}' for name, value in encoded.items()]
    lines += [
        f'fastovms_time_to_first_token_seconds_bucket{{{label},le="{bound}"}} {count}'
        for bound, count in zip(("0.1", "0.2", "+Inf"), waits, strict=True)
    ]
    lines += [f'fastovms_http_requests_total{{status="503"}} {generated // 100}']
    return "\n".join(lines)


def test_engine_rates_are_differences_of_two_scrapes(opened: Window) -> None:
    rates = call(
        opened,
        "live/engine_rates.js",
        f"const {{parseExposition}} = {LOAD}('live/exposition.js');"
        "const [before, now] = given.map(parseExposition);"
        "return ['m', 'other', 'e', ''].map((model) => m.ratesBetween(before, now, 2, model));",
        scrape(100, 1000, 100, [1, 1, 1]),
        scrape(300, 2000, 600, [1, 5, 5]),
    )
    mine, others, encoder, whole = rates
    assert (mine["out"], mine["in"], mine["running"], mine["kv"]) == (100, 500, 2, 0.25)
    assert (mine["hits"], mine["accepted"]) == (0.5, None)
    assert mine["first"] == pytest.approx(0.15)  # the middle of the bucket that all came into
    assert mine["gap"] is None
    assert (mine["stepPrompts"], mine["stepAnswers"]) == (2.5, 1)
    assert mine["serverErrors"] == 60
    assert (others["out"], others["running"], others["first"]) == (0, 0, None)
    assert (others["kv"], others["padding"]) == (None, None)
    assert (encoder["kv"], encoder["stepPrompts"], encoder["in"]) == (None, None, 4500)
    assert (encoder["texts"], encoder["batch"], encoder["padding"]) == (100, 4, 0.1)
    assert (whole["texts"], whole["padding"], whole["kv"]) == (100, 0.1, 0.25)
    assert (whole["stepPrompts"], whole["stepAnswers"]) == (2.5, 1)  # of those that generate


def test_python_program_sends_the_request(opened: Window) -> None:
    request = {
        "model": "m",
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "a\n'b'"}]}],
        "tools": [],
        "strict": True,
        "nothing": None,
    }
    program = call(
        opened, "chat/snippets.js", "return m.asPython('http://x/', ...given);", request, True
    )
    sent: dict[str, Any] = {}

    class Client:
        def __init__(self, **_: object) -> None:
            self.responses = self
            self.output_text = ""

        def create(self, **fields: object) -> Client:
            sent.update(fields)
            return self

    code = program.replace("from openai import OpenAI", "").replace('os.environ["API_KEY"]', '""')
    exec(compile(code, "snippet", "exec"), {"OpenAI": Client})
    assert sent == request


def test_a_module_of_javascript_asks_the_same_again(opened: Window) -> None:
    request = {
        "model": "m",
        "input": [{"role": "user", "content": "a\n'b' `${c}` </x>"}],
        "top_k": 1,
    }
    code = call(
        opened, "chat/snippets.js", "return m.asJavaScript('http://x/', ...given);", request, True
    )
    imported, _, body = code.partition("\n")
    assert imported == 'import OpenAI from "openai";'
    found = opened.page.evaluate(f"""async () => {{
      const seen = [];
      class OpenAI {{
        constructor(options) {{ seen.push(options); }}
        responses = {{ create: async (asked) => ({{ output_text: seen.push(asked) }}) }};
      }}
      const process = {{ env: {{ API_KEY: "secret" }} }};
      const console = {{ log: (text) => seen.push(text) }};
      {body}
      return seen;
    }}""")
    assert found == [{"baseURL": "http://x/v1", "apiKey": "secret"}, request, 2]
