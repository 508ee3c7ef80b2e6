"""Command lines of other servers, in this one's spelling."""

from __future__ import annotations

import pytest

from fastovms.cli.flags.aliases import ALIASES, normalize
from fastovms.cli.flags.flags import FLAGS


def test_values_are_left_alone():
    assert normalize(["serve", "my_model", "--model_name", "a_b", "true"]) == [
        "serve", "my_model", "--model-name", "a_b", "true",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "normal"),
    [
        ("", "serve"),
        ("my_model", "serve my_model"),
        ("org/a_b --port 1", "serve org/a_b --port 1"),
        ("pull org/a_b", "pull org/a_b"),
        ("--help", "--help"),
        ("-h", "-h"),
        ("--version", "--version"),
        ("--port 1", "serve --port 1"),
        # A switch whose name here says the opposite.
        ("--disable-fastapi-docs", "serve --no-enable-docs"),
        ("--disable_fastapi_docs true", "serve --no-enable-docs"),
        ("--disable-fastapi-docs=false", "serve --enable-docs"),
        ("--no-disable-fastapi-docs", "serve --enable-docs"),
        ("serve --port 1", "serve --port 1"),
        ("--pull true --source_model a/b", "serve --pull --source-model a/b"),
        ("--dynamic_split_fuse=false", "serve --no-dynamic-split-fuse"),
        ("m -tp 1 -pp=2 -dp 1 -q awq",
         "serve m --tensor-parallel-size 1 --pipeline-parallel-size=2 --data-parallel-size 1 "
         "--quantization awq"),
        ("m -O3 -O 2", "serve m --compilation-config=3 --compilation-config 2"),
        ("run-batch -i in -o out -tp 1", "run-batch -i in -o out --tensor-parallel-size 1"),
        ("chat -q x", "chat -q x"),
        # Several keys behind one flag, where a word cannot be the model.
        ("m --api-key a b c --port 1", "serve m --api-key a --api-key b --api-key c --port 1"),
        ("--api_key a b --model m", "serve --api-key a --api-key b --model m"),
        ("--api-key a m", "serve --api-key a m"),
        # In OVMS's lines --port is for gRPC, wherever it stands, and the default address any.
        ("--port 9000 --rest_port 8000",
         "serve --grpc-port 9000 --port 8000 --host 0.0.0.0"),
        ("--rest_port=8000 --port=9000", "serve --port=8000 --grpc-port=9000 --host 0.0.0.0"),
        ("serve --rest-port 8000 --rest_bind_address ::1", "serve --port 8000 --host ::1"),
        ("--rest_port 8000 --uds /s", "serve --port 8000 --uds /s"),
    ],
)  # fmt: skip
def test_lines_of_other_servers(line, normal):
    assert normalize(line.split()) == normal.split()


def test_aliases_name_flags():
    names = {flag.name for flag in FLAGS}
    names |= {f"--no-{flag.name[2:]}" for flag in FLAGS if flag.parse is None}
    assert set(ALIASES.values()) <= names
    assert not names & set(ALIASES)
