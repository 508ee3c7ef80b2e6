"""`images`: sends large images to a vision model and measures the effect on its other streams.

A PNG of 5,792 x 5,792 black pixels has 95 KiB, and 100 MB after decoding. Several requests with one
such image each are sent at once, then one request with several images, while a canary streams.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from PIL import Image

from bench.endurance.body_attack.stalls import CHAT, chat_with_images, post_all
from bench.endurance.canary import canary
from bench.endurance.server import MODEL, server_under_test
from bench.figures.command import Command
from bench.figures.figure import Figure

TINY_VLM: Final = Path(__file__).parents[2] / "tests" / "models" / "tiny_vlm"
CANARY_START: Final = 2.0
"""The seconds that the canary has to start."""
IDLE: Final = 2.0
"""The seconds after which memory is measured."""


def _png(side: int) -> bytes:
    data = io.BytesIO()
    Image.new("RGB", (side, side)).save(data, "PNG")
    return data.getvalue()


def run(options: argparse.Namespace) -> Sequence[Figure]:
    png = _png(options.side)
    one, several = chat_with_images(png), chat_with_images(png, options.images)
    with server_under_test(options.model, "--model-name", MODEL, "--cache-size", "0.1") as server:
        # The memory of a model in use counts from its first image.
        asyncio.run(post_all(server.port, CHAT, chat_with_images(_png(64)), at_once=1, rounds=1))
        base = server.workers_memory()
        with canary(server.url, MODEL) as seen:
            time.sleep(CANARY_START)
            longest = asyncio.run(
                post_all(server.port, CHAT, one, at_once=options.images, rounds=options.rounds)
            )
            together = asyncio.run(
                post_all(server.port, CHAT, several, at_once=1, rounds=options.rounds)
            )
        time.sleep(IDLE)
        memory = server.workers_memory() - base
    return [
        Figure("images at once", options.images),
        Figure("size of an image", len(png) / 1024, "KiB"),
        Figure("longest gap of a stream beside them", seen.longest_gap, "s", options.gap),
        Figure("streams that failed", seen.num_failures, at_most=0),
        Figure("longest answer to one image", longest, "s"),
        Figure("longest answer to all of them in one request", together, "s"),
        Figure("memory that stays in the workers", memory, "MiB", options.memory),
    ]


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default=str(TINY_VLM), help="directory of a vision model")
    parser.add_argument("--images", type=int, default=16, help="images at the same time")
    parser.add_argument("--side", type=int, default=5792, help="pixels of an image's side")
    parser.add_argument("--rounds", type=int, default=3, help="how often")
    parser.add_argument("--gap", type=float, default=1.0, help="s that a stream may pause")
    parser.add_argument(
        "--memory", type=float, default=128.0, help="MiB that may stay in the workers afterwards"
    )


COMMAND = Command(
    help="sends large images to a vision model, and watches its other streams",
    run=run,
    add_arguments=_arguments,
    short={"images": 4, "rounds": 1},
)
