from __future__ import annotations

import pytest

from bench.endurance.__main__ import LINE


@pytest.mark.parametrize("name", LINE.modules)
def test_command_has_a_place_on_the_page(name: str) -> None:
    assert f"<!-- figures of {name} -->\n" in LINE.page.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", LINE.modules)
def test_command_short_sets_its_options_or_is_refused(name: str) -> None:
    assert not LINE.options(name, []).short
    short = LINE.command(name).short
    if short is None:
        with pytest.raises(SystemExit):
            LINE.options(name, ["--short"])
    else:
        assert vars(LINE.options(name, ["--short"])).items() >= short.items()
