"""Tests that the image's description agrees with the package, the manifests and the lock file.
`deploy/image.sh` builds the image, which takes minutes."""

from __future__ import annotations

import configparser
import json
import re

import pytest
import yaml
from packaging.requirements import Requirement

from fastovms import __version__
from fastovms.api.admin import HEALTH_PATHS
from fastovms.cli.environment import VARIABLES
from fastovms.cli.flags import read_flags
from fastovms.cli.main import parse
from fastovms.config import HttpConfig
from tests.deploy.manifests import OVERLAYS, our_containers, overlay
from tests.paths import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text()
LOCK = (ROOT / "deploy/requirements.lock").read_text()
FINAL_STAGE = DOCKERFILE.rpartition("\nFROM ")[2]


def instruction(name: str) -> str:
    [value] = re.findall(rf"^{name} ((?:.+\\\n)*.+)$", FINAL_STAGE, re.MULTILINE)
    return str(value)


def variables() -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in instruction("ENV").replace("\\\n", "").split())


def test_the_version_is_that_of_the_package() -> None:
    assert f"ARG VERSION={__version__}\n" in FINAL_STAGE
    for name in OVERLAYS:
        images = {container["image"] for container, _ in our_containers(overlay(name))}
        assert images == {f"fastovms:{__version__}"}


def test_the_user_is_a_number_and_that_of_the_manifests() -> None:
    [(_, pod)] = our_containers(overlay("demo"))
    security = pod["securityContext"]
    assert instruction("USER") == f"{security['runAsUser']}:{security['runAsGroup']}"


def test_the_command_is_one_of_the_server() -> None:
    assert json.loads(instruction("ENTRYPOINT")) == ["fastovms"]
    http = read_flags(parse(json.loads(instruction("CMD")))).section(HttpConfig)
    assert (http.host, http.port) == ("0.0.0.0", int(instruction("EXPOSE")))


def test_directories_are_those_that_the_manifests_mount() -> None:
    [(container, _)] = our_containers(overlay("demo"))
    mounted = {it["mountPath"] for it in container["volumeMounts"]} - {"/tmp"}
    assert mounted == set(json.loads(instruction("VOLUME")))
    given = {it["name"]: it["value"] for it in container["env"]}
    assert given.items() <= variables().items()


@pytest.mark.parametrize("line", re.findall(r"^COPY (?!--)(.+) \S+$", DOCKERFILE, re.MULTILINE))
def test_copied_paths_exist(line: str) -> None:
    assert [path for path in line.split() if not (ROOT / path).exists()] == []


def test_the_lock_file_has_what_the_package_needs_by_hash() -> None:
    locked = dict(re.findall(r"^([\w.-]+)==(\S+)", LOCK, re.MULTILINE))
    hashes = re.findall(r"--hash=sha256:[0-9a-f]{64}", LOCK)
    assert len(hashes) >= len(locked) > 0
    metadata = configparser.ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    lines = metadata["options"]["install_requires"].split("\n")
    for extra in ("vision", "postgres", "speech", "documents"):
        lines += metadata["options.extras_require"][extra].split("\n")
    for requirement in (Requirement(line) for line in lines if line):
        version = locked[requirement.name.replace("_", "-")]
        assert requirement.specifier.contains(version), requirement


def test_compose_runs_the_image_with_its_volumes_and_a_health_check() -> None:
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())
    service = compose["services"]["fastovms"]
    assert (service["build"], service["image"]) == (".", f"fastovms:{__version__}")
    mounts = [mount.split(":") for mount in service["volumes"]]
    named = {path for name, path, *_ in mounts if name in compose["volumes"]}
    assert named == set(json.loads(instruction("VOLUME")))
    assert [port.split(":")[-1] for port in service["ports"]] == [instruction("EXPOSE")]
    *_, check = service["healthcheck"]["test"]
    [address] = re.findall(r"http://[\d.]+:(\d+)(/\w+)", check)
    assert (address[0], address[1] in HEALTH_PATHS) == (instruction("EXPOSE"), True)
    variables = {name for name in service["environment"] if name not in ("API_KEY", "HF_TOKEN")}
    assert variables <= VARIABLES.keys()
    asked = compose["services"]["open-webui"]["environment"]["OPENAI_API_BASE_URL"]
    assert asked == f"http://fastovms:{instruction('EXPOSE')}/v1"


def test_the_context_of_the_build_has_all_that_is_copied() -> None:
    lines = (ROOT / ".dockerignore").read_text().split()
    sent = {line[1:] for line in lines if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    assert sent == {path for line in copied for path in line.split()}
