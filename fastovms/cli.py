"""The command line."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NoReturn

from fastovms import __version__
from fastovms.config import EngineConfig, HttpConfig
from fastovms.errors import ConfigurationError

DEMO_MODEL: Final = Path(__file__).parent / "demo_model"

_USAGE_ERROR: Final = 2
_INTERRUPTED: Final = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns the exit code: 2 for what the operator can put right."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        return _serve(arguments)
    except ConfigurationError as error:
        print(f"fastovms: {' '.join(str(error).split())}", file=sys.stderr)
        return _USAGE_ERROR
    except KeyboardInterrupt:
        return _INTERRUPTED


def _serve(arguments: argparse.Namespace) -> int:
    # Imported here because OpenVINO takes a moment that --help and a wrong flag need not wait.
    from fastovms.app import ServerConfig, serve

    serve(
        ServerConfig(
            model_dir=arguments.model_dir,
            model_name=arguments.model_name,
            engine=EngineConfig(
                device=arguments.device,
                plugin_config=arguments.plugin_config,
                cache_size=arguments.cache_size,
                max_num_seqs=arguments.max_num_seqs,
                max_num_batched_tokens=arguments.max_num_batched_tokens,
            ),
            http=HttpConfig(host=arguments.host, port=arguments.port),
        )
    )
    return 0


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the whole usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(_USAGE_ERROR, f"{self.prog}: {message} (see {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="fastovms", description="OpenAI-compatible LLM server for OpenVINO models."
    )
    parser.add_argument("--version", action="version", version=f"fastovms {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_serve(commands.add_parser)
    return parser


def _add_serve(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    http, engine = HttpConfig(), EngineConfig()
    parser = add_parser(
        "serve",
        help="serve a model over HTTP",
        description="Serves a model over HTTP, with the APIs of OpenAI and vLLM below /v1 and of "
        "OpenVINO Model Server below /v3.",
    )
    parser.add_argument(
        "model_dir",
        metavar="MODEL_DIR",
        nargs="?",
        type=Path,
        default=DEMO_MODEL,
        help="directory of a model exported by optimum-intel (default: the built-in demo model)",
    )

    group = parser.add_argument_group("network")
    group.add_argument(
        "--host",
        metavar="ADDRESS",
        type=_text,
        default=http.host,
        help="address to listen on, 0.0.0.0 for every IPv4 one (default: %(default)s)",
    )
    group.add_argument(
        "--port",
        metavar="PORT",
        type=_integer(0, 65535),
        default=http.port,
        help="port to listen on, 0 for any free one (default: %(default)s)",
    )

    group = parser.add_argument_group("model")
    group.add_argument(
        "--model-name",
        metavar="NAME",
        type=_text,
        help="name that clients use (default: the directory's)",
    )
    group.add_argument(
        "--device",
        metavar="DEVICE",
        type=_text,
        default=engine.device,
        help="OpenVINO device (default: %(default)s)",
    )
    group.add_argument(
        "--plugin-config",
        metavar="JSON",
        type=_json_object,
        default=dict(engine.plugin_config),
        help="OpenVINO properties of the device, such as '{\"INFERENCE_NUM_THREADS\": 8}'",
    )

    group = parser.add_argument_group("batching and memory")
    group.add_argument(
        "--cache-size",
        metavar="GB",
        type=_cache_size,
        default=engine.cache_size,
        help="memory for the KV cache, used as it fills; "
        "0 = half of the memory that is free at start (default: %(default)g)",
    )
    group.add_argument(
        "--max-num-seqs",
        metavar="N",
        type=_integer(1),
        default=engine.max_num_seqs,
        help="sequences that run at the same time; more wait (default: %(default)s)",
    )
    group.add_argument(
        "--max-num-batched-tokens",
        metavar="TOKENS",
        type=_integer(1),
        default=engine.max_num_batched_tokens,
        help="tokens computed in one step, over all sequences; "
        "more speed long prompts up and slow running answers down (default: %(default)s)",
    )


def _integer(low: int, high: int | None = None) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if value < low or (high is not None and value > high):
            allowed = f"at least {low}" if high is None else f"from {low} to {high}"
            raise argparse.ArgumentTypeError(f"must be an integer {allowed}, not {text!r}")
        return value

    return parse


def _cache_size(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of GB, 0 or more, not {text!r}")
    return value


def _text(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("must not be empty")
    return text


def _json_object(text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, not {text!r}")
    return value
