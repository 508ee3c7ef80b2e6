from __future__ import annotations

import pytest

from bench.endurance.__main__ import LINE as ENDURANCE
from bench.figures.command_line import CommandLine
from bench.fleet.__main__ import LINE as FLEET

COMMANDS = [(line, name) for line in (ENDURANCE, FLEET) for name in line.modules]


@pytest.mark.parametrize(("line", "name"), COMMANDS)
def test_every_command_has_a_place_on_the_page(line: CommandLine, name: str) -> None:
    assert f"<!-- figures of {name} -->\n" in line.page.read_text(encoding="utf-8")


@pytest.mark.parametrize(("line", "name"), COMMANDS)
def test_every_command_has_options_of_both_lengths(line: CommandLine, name: str) -> None:
    assert not line.options(name, []).short
    if line.command(name).short is None:
        with pytest.raises(SystemExit):
            line.options(name, ["--short"])
    else:
        short = line.options(name, ["--short"])
        assert vars(short).items() >= (line.command(name).short or {}).items()
