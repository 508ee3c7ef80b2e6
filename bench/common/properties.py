"""Parses OpenVINO's properties from the command line."""

from __future__ import annotations

import argparse


def add_property_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--property",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an OpenVINO property for all that is compared, such as KV_CACHE_PRECISION=u8",
    )


def properties_of(arguments: argparse.Namespace) -> dict[str, str]:
    return dict(item.split("=", 1) for item in arguments.property)
