from __future__ import annotations

from pathlib import Path

from fastovms.cli.flags.flags import read_flags
from fastovms.cli.parser import parse
from fastovms.cli.server_choice import server_config
from fastovms.config.settings import ModelSource


def test_every_section_is_the_operators() -> None:
    flags = {"--port": 1, "--max-batch-lines": 2, "--max-file-size": 3}
    words = {**flags, "--log-level": "error", "--state-dir": "x"}
    line = [f"{name}={value}" for name, value in words.items()]
    settings = read_flags(parse(line))
    config = server_config([ModelSource("m")], settings, Path("list"), list)
    assert config.models == (ModelSource("m"),)
    assert (config.http.port, config.batches.max_lines, config.files.max_file_size) == (1, 2, 3)
    assert (config.service.log_level, str(config.state.state_dir)) == ("error", "x")
    assert config.model_list == Path("list")
    assert config.read_models is not None
