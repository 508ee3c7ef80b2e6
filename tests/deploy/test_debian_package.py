"""Tests of the input files of the Debian package."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

CLONE = Path(__file__).parents[2]
DEBIAN = CLONE / "deploy" / "debian"
SCRIPTS = ("build.sh", "postinst", "prerm", "postrm")


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_read_by_their_shell(name: str) -> None:
    path = DEBIAN / name
    shell = "bash" if "bash" in path.read_text().splitlines()[0] else "sh"
    subprocess.run([shell, "-n", path], check=True)


def test_every_gap_of_the_control_file_is_filled() -> None:
    gaps = set(re.findall(r"@\w+@", (DEBIAN / "control").read_text()))
    assert gaps == set(re.findall(r"@\w+@", (DEBIAN / "build.sh").read_text()))


def test_configuration_files_are_those_of_the_units() -> None:
    [configuration] = (DEBIAN / "conffiles").read_text().split()
    assert (
        f"EnvironmentFile=-{configuration}" in (CLONE / "systemd" / "fastovms.service").read_text()
    )


@pytest.mark.parametrize(
    "folder",
    ["StateDirectory=fastovms", "CacheDirectory=fastovms", "StateDirectory=fastovms-%i"],
)
def test_a_purge_deletes_what_services_keep(folder: str) -> None:
    units = "".join(path.read_text() for path in (CLONE / "systemd").glob("*.service"))
    assert folder in units
    _, name = folder.replace("%i", "*").split("=")
    script = (DEBIAN / "postrm").read_text()
    place = "/var/lib" if folder.startswith("State") else "/var/cache"
    assert place in script
    assert f'"$place"/{name}' in script
    assert f'"$place"/private/{name}' in script
