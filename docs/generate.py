"""Writes the pages that are generated from the code: flags.md, endpoints.md, metrics.md, and the
ranks of packages in architecture.md, the sampling parameters in fields.md, and the messages in
troubleshooting.md.

python -m docs.generate            writes them
python -m docs.generate --check    exits with 1 if one of them is not what it would write
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.registry import Collector

from docs import sizing
from docs.messages_of_code import messages
from docs.remedies import SECTIONS, reason_table, remedy_of, section_of
from docs.requests_page import request_tables
from fastovms.api.admin import HealthRoutes, ServerStatus
from fastovms.api.body import BodyReader
from fastovms.api.context import ApiContext
from fastovms.api.dialect import DIALECTS, render_error
from fastovms.api.served import KnownModel, ServedModels
from fastovms.app.loading import load_models
from fastovms.app.parts import Parts, PartSettings
from fastovms.app.routes import add_health_routes, add_model_routes
from fastovms.app.supply import OneModelLoader
from fastovms.backend_stats import BackendStats
from fastovms.cli.bench import BENCH_GROUPS
from fastovms.cli.chat import CHAT_FLAGS
from fastovms.cli.environment import CONFIG_FILE, EXTRA_ARGUMENTS, IGNORED, VARIABLES
from fastovms.cli.flag import Flag
from fastovms.cli.flags import FLAGS, GROUPS
from fastovms.cli.foreign_flags import ALIASES
from fastovms.cli.main import parse
from fastovms.config import ApiConfig, HttpConfig
from fastovms.http.access_log import HttpMetrics
from fastovms.http.gates import KeyLimits
from fastovms.http.messages import Exchange, Request
from fastovms.http.routing import Dispatcher, Router
from fastovms.http.server import HttpServer
from fastovms.params import SamplingFields, SamplingParams
from fastovms.parts.limits import KeyBudgets
from fastovms.parts.openapi.document import TAGS, openapi_document
from fastovms.parts.ovms.options import OVMS_OPTIONS
from fastovms.parts.page.page import read_page_files
from fastovms.parts.several_models.model_pool import ModelCollector, ModelPool
from fastovms.parts.several_models.residency import Residency
from fastovms.request_fields import Row, rows_by_name, rows_of
from fastovms.server_config import (
    ConfigField,
    MediaConfig,
    ResidencyConfig,
)
from fastovms.service.export import LoadedGraphs, OvmsMetrics
from fastovms.service.watch import ChildCollector, LoopWatch
from fastovms.state.state_store import StateCollector
from fastovms.state.store import StateStats
from fastovms.telemetry.metrics import GenerationCollector, GenerationMetrics
from tests.layers import RANKS

DOCS: Final = Path(__file__).parent
OVMS_FLAGS: Final = DOCS.parent / "tests" / "cli" / "ovms_flags.txt"
"""All flags of `ovms --help`, as it spells them."""

_WARNING: Final = "<!-- Made by docs/generate.py. Change the tables it reads, not this page. -->"


# Flags


def flags_page() -> str:
    """The command line: what `--help` says of models and commands, then every group of flags."""
    variables = defaultdict(list)
    flags_by_name = {flag.name: flag for flag in FLAGS}
    for variable, name in VARIABLES.items():
        if set_flag := flags_by_name.get(ALIASES.get(name, name)):
            variables[set_flag.field].append(f"`{variable}`")
    for option in OVMS_OPTIONS:
        if option.variable and option.field is not None:
            variables[option.field].append(f"`{option.variable}`")
    parts = [
        "# Flags",
        _WARNING,
        "Flags go before environment variables, those before the options of a `graph.pbtxt`, and "
        "those before the defaults. Sizes may be written as `64K`, `16M` or `1G` (powers of 1024), "
        "times as `90s`, "
        "`15m`, `2h` or `30d`, and large numbers as `8k` (8000) or `8K` (8192). A switch has a "
        "`--no-` form: `--no-tune`. Flags of OpenVINO Model Server, with underscores, and of vLLM "
        "are accepted too: see [Move here from OVMS](from-ovms.md) and [vLLM](from-vllm.md). A "
        "wrong value is one line on stderr and exit code 2. `fastovms serve --help` shows the ten "
        "flags that are used most, `--help-all` every flag.",
        "## Commands",
        _help_of(),
        "## Models",
        _help_of("serve", "--help-all"),
    ]
    for title, flags in GROUPS.items():
        parts += [f"## {title[0].upper()}{title[1:]}", _flag_table(flags, variables)]
    parts += ["## Batches without a server", _help_of("run-batch")]
    parts += ["## Doctor", _help_of("doctor")]
    parts += ["## Chat in the terminal", _help_of("chat"), _flag_table(CHAT_FLAGS)]
    parts += ["## Bench", _help_of("bench")]
    for title, flags in BENCH_GROUPS.items():
        parts += [f"### Bench: {title}", _flag_table(flags)]
    return _page(parts)


def _help_of(*command: str) -> str:
    """What `--help` prints, up to the first group of the table of flags."""
    printed = StringIO()
    width = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100"
    try:
        with redirect_stdout(printed), suppress(SystemExit):
            parse([*command, "--help"])  # after --help-all, that has printed and exited
    finally:
        if width is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = width
    text = printed.getvalue()
    groups = (*GROUPS, *BENCH_GROUPS)
    ends = [end for title in groups if (end := text.find(f"\n{title}:\n")) >= 0]
    return f"```text\n{text[: min(ends, default=len(text))].strip()}\n```"


def _flag_table(
    flags: Iterable[Flag], variables: Mapping[ConfigField, Sequence[str]] | None = None
) -> str:
    """A row for each flag, with the environment variables that set its field, too."""
    rows = [_flag_row(flag, (variables or {}).get(flag.field, ())) for flag in flags]
    return _table(("Flag", "Default", "Meaning"), rows)


def _flag_row(flag: Flag, variables: Sequence[str]) -> tuple[str, ...]:
    name = f"`{flag.name} {flag.kind.metavar}`" if flag.kind.metavar else f"`{flag.name}`"
    default = f"`{flag.shown_default}`" if flag.shown_default else ""
    also = f"; environment: {', '.join(variables)}" if variables else ""
    return name, default, f"{flag.help}{also}"


# Endpoints


def endpoints_page() -> str:
    """Every route of the router, by the sections of its operations."""
    router = _router()
    parts = [
        "# Endpoints",
        _WARNING,
        "Paths below `/v1` speak OpenAI's dialect with vLLM's extra fields, those below `/v3` and "
        "`/v3/v1` that of OpenVINO Model Server; [API differences](choices.md) has the rest. GET "
        "serves HEAD, and OPTIONS says which methods a path has. Below `/v1` and `/v3` several "
        "slashes count as one, one at the end as none, and a version that is repeated once "
        "(`//v1/models/`, `/v1/v1/models`); a path without its version is a 404 that names the "
        "one with it. Probes are answered with a slash behind them, too. With "
        "`--root-path /v2/abc/openai`, for a proxy that leaves its own path in front of all this, "
        "paths with and without it are answered. [Fields](fields.md) has every "
        "field of the requests.",
    ]
    sections: dict[str, dict[tuple[str, str, str], set[str]]] = {title: {} for title in TAGS}
    named = {route for route in router.routes() if route[1] == "/" or not route[1].endswith("/")}
    if unknown := sorted(named - router.operations.keys()):
        raise SystemExit(f"routes without an operation: {unknown}")
    for (method, pattern), operation in router.operations.items():
        prefix, path = _split(pattern.replace(":path}", "}"))
        row = method, path, operation.summary
        sections[operation.section].setdefault(row, set()).add(prefix)
    for title, rows in sections.items():
        cells = []
        for (method, path, summary), prefixes in rows.items():
            below = _below(prefixes)
            if len(prefixes) == 1:
                path, below = prefixes.pop() + path, ""
            cells.append((f"`{method} {path}`", below, summary))
        if cells:
            parts += [f"## {title}", _table(("Request", "Below", "What it does"), cells)]
    return _page(parts)


def _split(path: str) -> tuple[str, str]:
    """Returns the prefix of a dialect that a path has, if it has one, and the rest."""
    for prefix in _PREFIXES:
        if path.startswith(f"{prefix}/"):
            return prefix, path.removeprefix(prefix)
    return "", path


_PREFIXES: Final = sorted(
    (prefix for dialect in DIALECTS for prefix in dialect.prefixes), key=len, reverse=True
)


def _router() -> Router:
    """A router with every route."""
    router = Router()
    context = ApiContext(ServedModels([]), ApiConfig(), str, float, BodyReader())
    parts = Parts(PartSettings(shows_docs=True))
    add_model_routes(router, context, parts)
    parts.load_now()
    add_health_routes(router, HealthRoutes(ServerStatus(), CollectorRegistry(), ""))
    read_page_files().add_routes(router)
    return router


def _below(prefixes: Collection[str]) -> str:
    return (
        ", ".join(f"`{prefix}`" if prefix else "the root" for prefix in sorted(prefixes))
        if any(prefixes)
        else ""
    )


# Requests


def requests_page() -> str:
    """The fields of every request below `/v1` and at the root, by the types that read them."""
    document = openapi_document(_router().operations, model="name")
    parts = [
        "# Requests",
        _WARNING,
        "The fields of every request with a body in JSON, by the types that the server reads it "
        "with; `/openapi.json` of a running server has the same with the parts of nested objects. "
        "Requests below `/v3` are those below `/v1`, with other defaults and ranges: see "
        "[Fields](fields.md), which also has the values that each field takes and refuses. "
        "Unknown fields are ignored.",
    ]
    for title, rows in request_tables(document, fields_page()):
        if "/v3" not in title:
            parts += [f"## {title}", _table(("Field", "Type", "Meaning"), rows)]
    return _page(parts)


# Metrics


def metrics_page() -> str:
    """Every family that the collectors export."""
    parts = [
        "# Metrics",
        _WARNING,
        "`GET /metrics` answers in Prometheus' text format, or in OpenMetrics where the request "
        "asks for it. A metric that vLLM has too is named as there, with the prefix `fastovms_`: "
        "dashboards need one change. vLLM lacks, of the first section, `model_info`, those of "
        "grammars, of encoders, of the disk and of decode kernels (`packed_weights_bytes` "
        "included), `longest_step_seconds`, `step_seconds` and `kv_cache_bytes`. "
        "`num_requests_*` count sequences, as vLLM's do: a request for three samples "
        "counts three times. `GET /metrics?name[]=fastovms_generation_tokens_total` "
        "answers with the series of that name alone, at a fraction of the cost; `name[]` may come "
        "several times.",
    ]
    for title, collector in _collectors().items():
        rows = [
            (f"`{name}`", kind, ", ".join(f"`{label}`" for label in labels), text)
            for name, kind, labels, text in _families(collector)
        ]
        parts += [f"## {title}", _table(("Name", "Type", "Labels", "Meaning"), rows)]
    return _page(parts)


def _collectors() -> Mapping[str, Collector]:
    """The collectors that `app` registers, each having seen one request, so that it tells its
    labels."""
    request = Request("POST", "/v1/completions")
    request.route = "/v1/completions"
    request.log_fields["model"] = "name"
    exchange = Exchange(request, 200, 0, 0.0, True)
    server = HttpServer(HttpConfig(), Dispatcher(Router(), render_error))
    http, ovms = HttpMetrics(lambda: server), OvmsMetrics()
    http(exchange)
    ovms(exchange)
    labels = {"max_model_len": "", "device": ""}
    generation = GenerationMetrics("name", BackendStats, labels)
    generation.finished["stop"] = 1
    models = ServedModels()
    load = partial(load_models, media=MediaConfig())
    pool = ModelPool(
        models,
        Residency(ResidencyConfig()),
        OneModelLoader(load, ResidencyConfig(), int, trim=bool),
        clock=float,
        wait_timeout=0.0,
    )
    models.set_known([KnownModel("name")])
    budgets = KeyBudgets(float)
    budgets.set_limits({"key": KeyLimits(1, 1, 1)})
    return {
        "Generation": GenerationCollector(lambda: [generation]),
        "Models": ModelCollector(models, pool),
        "HTTP": http,
        "API keys with limits": budgets,
        "The event loop": LoopWatch(bool, float, float),
        "Stored responses": StateCollector(lambda: StateStats(0, 0, 0, True), int),
        "The process": ProcessCollector(registry=None),
        "Child processes": ChildCollector(list),
        "OpenVINO Model Server's counters, with `--ovms-metrics`": ovms,
        "OpenVINO Model Server's loaded graphs, with `--ovms-metrics`": LoadedGraphs(models),
    }


def _families(collector: Collector) -> Iterator[tuple[str, str, list[str], str]]:
    """Name, type, labels and help of each family, named as a scrape shows it."""
    for family in collector.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label: None for sample in family.samples for label in sample.labels}
        labels.pop("le", None)
        yield name, family.type, list(labels), family.documentation


# Markdown


def _page(parts: Iterable[str]) -> str:
    return "\n\n".join(parts) + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(_escape, cells))} |" for cells in lines)


def _escape(cell: str) -> str:
    return cell.replace("|", "\\|").replace("<", "&lt;")


# Architecture


def architecture_page() -> str:
    """Returns the page with the ranks of `tests/layers.py`, the highest first."""
    text = (Path(__file__).parent / "architecture.md").read_text()
    ranks = "\n".join(
        f"{rank}  {'  '.join(sorted(layers))}" for rank, layers in reversed(list(enumerate(RANKS)))
    )
    before, begin, rest = text.partition("<!-- ranks -->\n\n")
    _, end, after = rest.partition("<!-- end -->")
    return f"{before}{begin}```text\n{ranks}\n```\n\n{end}{after}"


# Environment


_OF_LIBRARIES: Final = {
    "API_KEY": "the key that clients need, if no flag gives one",
    "VLLM_API_KEY": "the same",
    EXTRA_ARGUMENTS: "further flags, after those of the command line",
    CONFIG_FILE: "`--config`",
    "HF_TOKEN": "huggingface_hub: the token for gated models",
    "HF_ENDPOINT": "huggingface_hub: the address of the hub",
    "HF_HUB_OFFLINE": "huggingface_hub: 1 = no network",
}
"""Variables that set no flag by a table."""


def environment_page() -> str:
    """Every variable that the server reads, with the flag that it sets."""
    renamed, same = [], []
    for variable, flag in VARIABLES.items():
        if variable == flag[2:].replace("-", "_").upper():
            same.append((f"`{variable}`", f"`{flag}`"))
        else:
            renamed.append((f"`{variable}`", f"`{flag}`"))
    rows = [(f"`{name}`", text) for name, text in _OF_LIBRARIES.items()]
    of_ovms = [
        (f"`{option.variable}`", f"`{option.field.name}` of the configuration")
        for option in OVMS_OPTIONS
        if option.variable and option.field is not None
    ]
    unused = [(f"`{name}`", reason) for name, reason in IGNORED.items()]
    return _page(
        [
            "# Environment",
            _WARNING,
            "The command line overrides `VLLM_EXTRA_ARGS`, that overrides other variables, and "
            "these override `VLLM_CONFIG_FILE`. An empty variable counts as not set, and so does a "
            "`MAX_NUM_BATCHED_TOKENS` of 0. Booleans are true, 1, yes, on, false, 0, no or off. An "
            "error begins with the name of the variable.",
            "## Keys, hubs and further flags",
            _table(("Variable", "Meaning"), rows),
            "## Variables with a name of their own",
            _table(("Variable", "Flag"), renamed),
            "## Of OpenVINO Model Server",
            _table(("Variable", "Field"), of_ovms),
            "## Flags of vLLM in capitals",
            "`MAX_MODEL_LEN=8k` is `--max-model-len 8k`, `ENABLE_PREFIX_CACHING=false` is "
            "`--no-enable-prefix-caching`. A flag that has no use here has none as a variable "
            "either, and the log says so; a flag that is refused is refused as a variable. "
            "`HOST`, `PORT`, `MODEL` and `CONFIG` set no flag, as in Runpod's worker.",
            _table(("Variable", "Flag"), sorted(same)),
            "## Without use",
            _table(("Variable", "Why"), unused),
        ]
    )


# Troubleshooting


def troubleshooting_page() -> str:
    """Returns the page with every message of `ConfigurationError` and every warning at start."""
    text = (Path(__file__).parent / "troubleshooting.md").read_text()
    before, begin, rest = text.partition("<!-- messages -->\n\n")
    _, end, after = rest.partition("<!-- end -->")
    found = messages()
    parts = []
    for section in SECTIONS:
        own, others = [], []
        for message in (message for message in found if section_of(message) is section):
            remedy = remedy_of(message, section)
            if remedy is None:
                others.append(f"- `{message.text}`")
            else:
                own.append((f"`{message.text}`", remedy))
        parts += [f"## {section.title}", section.advice]
        parts += [_table(("Message", "What to do"), sorted(set(own)))] if own else []
        parts += ["\n".join(sorted(set(others)))] if others else []
        if section.title == "Model directories":
            parts += [
                "The reason in a refusal or a warning:",
                _table(("Reason", "What to do"), reason_table()),
            ]
    return f"{before}{begin}{chr(10).join(f'{part}{chr(10)}' for part in parts)}\n{end}{after}"


# Moving here from OVMS


def from_ovms_page() -> str:
    """Returns the page with the table of OVMS's flags without effect."""
    text = (DOCS / "from-ovms.md").read_text()
    before, begin, rest = text.partition("<!-- flags -->\n\n")
    _, end, after = rest.partition("<!-- end -->")
    names = {flag.replace("_", "-"): flag for flag in OVMS_FLAGS.read_text().split()}
    by_reason = defaultdict(list)
    for option in OVMS_OPTIONS:
        if option.unused is not None and option.flag in names:
            by_reason[option.unused].append(f"`{names[option.flag]}`")
    rows = [(", ".join(flags), reason) for reason, flags in by_reason.items()]
    return f"{before}{begin}{_table(('flags', 'why'), rows)}\n\n{end}{after}"


# Which model


def choose_page() -> str:
    """Returns the page with the table of sizes that `docs/sizing.py` computes."""
    text = (Path(__file__).parent / "choose-a-model.md").read_text()
    before, begin, rest = text.partition("<!-- sizes -->\n\n")
    _, end, after = rest.partition("<!-- end -->")
    speeds = (f"tokens/s at {bandwidth} GB/s" for bandwidth in sizing.BANDWIDTHS)
    head = ("model", "precision", "weights", "8K context", "needs", *speeds)
    return f"{before}{begin}{_table(head, sizing.rows())}\n\n{end}{after}"


# Fields


def fields_page() -> str:
    """The page as it is, with the rows of the sampling parameters made from their table, and with
    Ollama's options that have no row yet."""
    text = (Path(__file__).parent / "fields.md").read_text()
    heading = text.index("`POST /completions` may be")
    start = text.index("\n", text.index("\n|---", heading) + 1) + 1
    end = text.index("\n\n", start)
    rows = rows_of(SamplingFields)
    lines = text[start:end].splitlines()
    kept = [line for line in lines if line.split("`")[1] not in rows]
    position = next(i for i, line in enumerate(lines) if line.split("`")[1] in rows)
    kept[position:position] = map(_field_row, rows.values())
    text = text[:start] + "\n".join(kept) + text[end:]
    options = text.index("\n\n", text.index("|---", text.index("### Ollama's options")))
    known = text[text.index("### Ollama's options") : options]
    added = [
        f"\n| `{option}` | - | {_values_of(row, 'ollama')} |"
        for option, row in rows_by_name(SamplingFields, "ollama").items()
        if f"| `{option}` |" not in known
    ]
    return text[:options] + "".join(added) + text[options:]


def _field_row(row: Row) -> str:
    """What a parameter may be: the peers' words, then ours below `/v1` and `/v3`."""
    texts = [_values_of(row, dialect) for dialect in ("openai", "ovms")]
    ovms = "as `/v1`" if texts[0] == texts[1] else texts[1]
    openai = f"{row.field.description} {texts[0]}"
    return f"| `{row.name}` | {' | '.join(row.field.peers or ('-',) * 3)} | {openai} | {ovms} |"


def _values_of(row: Row, dialect: str) -> str:
    default = row.field.defaults.get(dialect, getattr(SamplingParams(), row.name, None))
    words = f"Default {default:g}. " if default is not None else ""
    taken, refused = (
        " ".join(f"`{json.dumps(value)}`" for value in values) for values in row.examples(dialect)
    )
    return f"{words}Takes {taken}, refuses {refused}"


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "flags.md": flags_page,
    "endpoints.md": endpoints_page,
    "metrics.md": metrics_page,
    "architecture.md": architecture_page,
    "requests.md": requests_page,
    "environment.md": environment_page,
    "fields.md": fields_page,
    "troubleshooting.md": troubleshooting_page,
    "choose-a-model.md": choose_page,
    "from-ovms.md": from_ovms_page,
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare the pages, write nothing")
    arguments = parser.parse_args(argv)
    stale = []
    for name, make in PAGES.items():
        path, text = DOCS / name, make()
        if not path.exists() or path.read_text() != text:
            stale.append(name)
            if not arguments.check:
                path.write_text(text)
    if stale:
        print(f"{'not current' if arguments.check else 'written'}: {', '.join(stale)}")
    return 1 if stale and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
