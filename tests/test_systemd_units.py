"""The unit files, as systemd's own tools read them."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from fastovms.app.catalog import model_root
from fastovms.cli.flags import add_flags, read_flags
from fastovms.cli.foreign_flags import normalize
from fastovms.config import HttpConfig
from fastovms.server_config import ServiceConfig
from fastovms.system.disk import cache_root, state_directory

UNITS = Path(__file__).parents[1] / "systemd"
SERVICES = ("fastovms.service", "fastovms@.service")
MAX_EXPOSURE = 2.0

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="systemd-analyze is missing: apt-get install systemd",
)


def setting(unit: str, name: str) -> str:
    found = re.findall(rf"^{name}=(.*)$", (UNITS / unit).read_text(), re.MULTILINE)
    assert len(found) == 1, name
    return found[0]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The units with a program that exists, and an instance of the template."""
    folder = tmp_path_factory.mktemp("units")
    for path in UNITS.glob("fastovms*.*"):
        text = path.read_text().replace("/opt/fastovms/bin/fastovms", "/bin/true")
        (folder / path.name).write_text(text)
    shutil.copy(folder / "fastovms@.service", folder / "fastovms@model.service")
    return folder


def analyze(*arguments: str) -> str:
    done = subprocess.run(
        ["systemd-analyze", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@needs_systemd
def test_units_are_valid_for_systemd(installed):
    names = ("fastovms.service", "fastovms.socket", "fastovms@model.service")
    assert analyze("verify", *(str(installed / name) for name in names)) == ""


@needs_systemd
@pytest.mark.parametrize("service", SERVICES)
def test_exposure_of_a_service_is_below_the_limit(installed, service):
    report = analyze("security", "--offline=true", "--no-pager", str(installed / service))
    found = re.search(r"Overall exposure level for .*: ([\d.]+)", report)
    assert found is not None
    assert float(found[1]) <= MAX_EXPOSURE


@pytest.mark.parametrize("service", SERVICES)
def test_systemd_is_more_patient_than_the_server(service):
    http, config = HttpConfig(), ServiceConfig()
    shutdown = http.drain_timeout + http.drain_grace + http.close_timeout
    assert float(setting(service, "TimeoutStopSec")) > shutdown
    hang = config.engine_timeout + config.failure_grace
    assert float(setting(service, "WatchdogSec")) > hang
    assert int(setting(service, "LimitNOFILE")) > http.max_connections


def test_the_services_differ_in_their_model_only():
    one, many = ((UNITS / name).read_text().splitlines() for name in SERVICES)
    common = [line for line in one if "fastovms" not in line]
    assert [line for line in many if line in common] == common


@pytest.mark.parametrize("service", SERVICES)
def test_cache_models_and_state_are_in_directories_of_the_service(service):
    """Where systemd makes them: of the rest of the system, the sandbox lets nothing be written."""
    name, value = setting(service, "Environment").split("=")
    environ = {name: value.replace("%C", "/var/cache")}
    cache = Path("/var/cache", setting(service, "CacheDirectory"))
    for path in (cache_root(None, environ), model_root(None, environ)):
        assert path is not None
        assert path.is_relative_to(cache)
    state = f"/var/lib/{setting(service, 'StateDirectory')}"
    assert state_directory({**environ, "STATE_DIRECTORY": state}) == Path(state)


def test_environment_file_sets_the_variables_of_the_unit():
    variables = dict(
        line.split("=", 1)
        for line in (UNITS / "fastovms.env").read_text().splitlines()
        if line and not line.startswith("#")
    )
    assert set(variables) == set(re.findall(r"\$(FASTOVMS_\w+)", setting(SERVICES[0], "ExecStart")))
    parser = argparse.ArgumentParser()
    add_flags(parser)
    line = shlex.split(variables["FASTOVMS_FLAGS"])
    flags = parser.parse_args(normalize(line))
    assert read_flags(flags).section(HttpConfig).port == 8000
