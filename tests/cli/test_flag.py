"""Tests of `fastovms/cli/flag.py` and `fastovms/setting.py`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from fastovms import setting
from fastovms.cli.flag import Flag
from fastovms.server_config import ENGINE, HTTP, SECURITY
from fastovms.setting import SIZE, SWITCH, TEXT, Kind, show_size
from tests.adapters import BAD_NAMES
from tests.cli.test_flags import parse


@pytest.mark.parametrize("name", BAD_NAMES, ids=ascii)
@pytest.mark.parametrize("form", ["{}=/a", "b=/b,{}=/a", "json"])
def test_adapter_with_a_name_that_the_api_refuses_is_refused(name: str, form: str) -> None:
    text = json.dumps({"name": name, "path": "/a"}) if form == "json" else form.format(name)
    with pytest.raises(argparse.ArgumentTypeError, match=r"has a name that must|must be NAME=PATH"):
        setting.adapters(text)


def test_adapter_with_a_path_that_the_api_refuses_is_refused() -> None:
    longest = f"/{'a' * 4095}"
    assert setting.adapters(f"{'x' * 256}={longest}") == {"x" * 256: Path(longest)}
    for path in (f"{longest}a", "/a\0", "/a\nb"):
        with pytest.raises(argparse.ArgumentTypeError, match="has a path that must"):
            setting.adapters(f"x={path}")


# Parsed values of flags, and the errors for wrong ones.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-body", "0"], "of bytes above 0, such as 65536, 64K or 1G, not '0'"),
        (["--max-body", "1.5M"], "not '1.5M'"),
        (["--port", "65536"], "must be an integer from 0 to 65535, not '65536'"),
        (["--cache-size", "-1"], "must be a number of GiB, 0 or more and at most 1,000,000, "),
        (["--cache-size", "1e300"], "at most 1,000,000, not '1e300'"),
        (["--cache-size", "nan"], "not 'nan'"),
        (["--suffix-index-tokens", "9" * 20], "an integer from 0 to 67108864, not '999"),
        (["--max-num-batched-tokens", "1.5"], "not '1.5'"),
        (["--plugin-config", "{"], "must be a JSON object, not '{'"),
        (["--plugin-config", "[1]"], "must be a JSON object, not '[1]'"),
        (["--plugin-config", "[" * 100_000], "must be a JSON object"),
        (["--example-messages", "[1]"], 'must be a JSON list such as [{"role": "user", "content"'),
        (["--example-messages", '[{"role": ["a"], "content": "b"}]'], "user or assistant, not {'"),
        (["--example-messages", '{"role": "user", "content": "b"}'], "must be a JSON list"),
        (["--device", ""], "must not be empty"),
        (["--allowed-hosts", "a,,b"], "must be names separated by commas, not 'a,,b'"),
        (["--forwarded-allow-ips", "10.0.0.0/8,me"], "such as 10.0.0.0/8, separated by commas"),
        (["--forwarded-allow-ips", "10.0.0.1/8"], "or *, not '10.0.0.1/8'"),
        (["--allowed-origins", "[]"], "must be names separated by commas, not '[]'"),
        (["--allowed-origins", '["a", 5]'], "must be names separated by commas"),
        (["--head-timeout", "0"], "must be a time of more than 0, not '0'"),
        (["--drain-timeout", "-1"], "a time of 0 or more, such as 90s, 15m or 2h, not '-1'"),
        (["--drain-timeout", "1e999"], "not '1e999'"),
        (["--drain-timeout", "3 weeks"], "not '3 weeks'"),
        (["--max-files", "0k"], "must be an integer at least 1, not '0'"),
        (["--max-files", "1.0001k"], "must be an integer at least 1, not '1.0001k'"),
        (["--uds-mode", "rw"], "must be three octal digits, such as 660, not 'rw'"),
        (["--access-log", "yes"], "must be off, text or json, not 'yes'"),
        (["--log-level", "7"], "must be trace, debug, info, warning or error, not '7'"),
        (["--uds", ""], "must not be empty"),
        (["--root-path", "v2"], "must be a path that begins with /, not 'v2'"),
        (["--root-path", "/a?b"], "not '/a?b'"),
        (["--otlp-traces-endpoint", "collector:4318"], "must be an http:// or https:// address"),
        (["--otlp-traces-endpoint", "http://a:99999"], "not 'http://a:99999'"),
        (["--max-model-len", "0"], "8K (8192) or 8k (8000), or auto, not '0'"),
        (["--max-model-len", "1.0001k"], "not '1.0001k'"),
        (["--max-model-len", "9" * 20], f"not '{'9' * 20}'"),
    ],
)  # fmt: skip
def test_invalid_value_of_a_flag_is_refused(arguments, message):
    with pytest.raises(argparse.ArgumentError, match=rf"argument {arguments[0]}: .*") as caught:
        parse(*arguments)
    assert message in str(caught.value)


SIZES = [(2048, "2K"), (1024**3, "1G"), (1000, "1000")]
DURATIONS = [
    (2592000.0, "30d"),
    (900.0, "15m"),
    (3600.0, "1h"),
    (75.0, "75s"),
    (0.5, "0.5s"),
    (0.0, "0"),
]
COUNTS = [(1024**2, "1M"), (10**6, "1m"), (16384, "16K"), (10_000, "10k"), (0, "0"), (1, "1")]


@pytest.mark.parametrize(
    ("show", "read", "values"),
    [
        (setting.show_size, setting.size, SIZES),
        (setting.show_duration, setting.duration, DURATIONS),
        (setting.show_count, setting.count(0), COUNTS),
    ],
    ids=["sizes", "durations", "counts"],
)
def test_values_are_shown_as_they_are_read(show, read, values):
    assert [show(value) for value, _ in values] == [shown for _, shown in values]
    assert [read(shown) for _, shown in values] == [value for value, _ in values]


# A flag in the help.


PORT = Flag(Kind("N", int), "100% a port", "--p", field=HTTP.port)
CACHING = Flag(SWITCH, "caches", "--caching", field=ENGINE.enable_prefix_caching)
KEYS = Flag(TEXT, "a key", "--key", repeats=True, field=SECURITY.api_keys)


@pytest.mark.parametrize(
    ("flag", "shown"),
    [
        (PORT, "8000"),
        (CACHING, "yes"),
        (KEYS, ""),
        (Flag(SIZE, "", "--m", field=HTTP.max_body), show_size(HTTP.max_body.default)),
        (Flag(TEXT, "", "--d", field=ENGINE.draft_model), ""),
        (Flag(TEXT, "a device (default: any)", "--d", field=ENGINE.device), ""),
    ],
)
def test_default_of_a_flag_is_shown_in_words(flag, shown) -> None:
    assert flag.shown_default == shown


def test_percent_sign_is_kept_in_the_help() -> None:
    parser = argparse.ArgumentParser()
    PORT.add_to(parser)
    assert "100% a port (default: 8000)" in parser.format_help()
