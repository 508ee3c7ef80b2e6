"""Installs the Debian package in a clean root, serves from it, upgrades and purges it:

    python -m tests.deploy.clean_debian [ROOT]

It needs root, mmdebstrap and some minutes. ROOT = a clean root of before, which is copied; else one
is made. systemd does not run there: the units are verified, and the server is started as they do.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import openai

from fastovms import __version__

CLONE = Path(__file__).parents[2]
SOURCES = Path("/etc/apt/sources.list.d/debian.sources")
CONFIGURATION = Path("etc/fastovms/fastovms.env")
STATE = Path("var/lib/fastovms")
CHANGED = "FASTOVMS_MODEL=\nFASTOVMS_FLAGS=--port 9000\n"
UNITS = ("fastovms.service", "fastovms.socket", "fastovms@model.service")
PACKAGE_MANAGERS_OWN = ("var/lib/dpkg", "var/log", "var/cache/ldconfig", "var/lib/systemd", "run")
"""Where dpkg and systemd write for every package, or while they run."""


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="fastovms-debian-") as folder:
        work = Path(folder)
        first, second = build(work, __version__), build(work, f"{__version__}+1")
        root = clean_root(work, Path(sys.argv[1]) if len(sys.argv) > 1 else None)
        with mounted(root):
            before = files_of(root)
            install(root, first)
            documents_are_there(root)
            units_are_valid(root)
            response_id = answer(root)
            (root / CONFIGURATION).write_text(CHANGED)
            install(root, second)
            assert (root / CONFIGURATION).read_text() == CHANGED, "the configuration is lost"
            is_still_answered(root, response_id)
            inside(root, "dpkg", "--remove", "fastovms")
            assert (root / CONFIGURATION).exists(), "removing has purged"
            inside(root, "dpkg", "--purge", "fastovms")
            left = {name for name in files_of(root) if name not in before}
            assert not left, f"a purge has left {sorted(left)[:20]}"
    print("the package is installed, serves, is upgraded and purged")


def build(work: Path, version: str) -> Path:
    script = CLONE / "deploy" / "debian" / "build.sh"
    subprocess.run([script, "--version", version, work], check=True)
    [package] = work.glob(f"fastovms_{version}_*.deb")
    return package


def clean_root(work: Path, given: Path | None) -> Path:
    """Returns a root with what a minimal installation of Debian has, Python and systemd."""
    root = work / "root"
    if given is not None:
        subprocess.run(["cp", "--archive", given, root], check=True)  # with its devices
    else:
        packages = "--include=python3,systemd,libstdc++6,procps"
        command = ["mmdebstrap", "--variant=minbase", packages, "bookworm", root, SOURCES]
        subprocess.run(command, check=True)
    return root


@contextmanager
def mounted(root: Path) -> Iterator[None]:
    """Mounts what a process sees of the kernel."""
    mounts = [("proc", root / "proc"), ("tmpfs", root / "dev/shm")]
    for kind, place in mounts:
        place.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", kind, kind, place], check=True)
    try:
        yield
    finally:
        for _, place in reversed(mounts):
            subprocess.run(["umount", "--lazy", place], check=True)


def inside(root: Path, *command: str) -> str:
    done = subprocess.run(["chroot", root, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def install(root: Path, package: Path) -> None:
    shutil.copy(package, root / "package.deb")
    inside(root, "dpkg", "--install", "/package.deb")
    (root / "package.deb").unlink()


def files_of(root: Path) -> set[str]:
    listed = subprocess.run(
        ["find", ".", "-xdev", "-printf", "%P\n"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    return {
        name for name in listed.stdout.splitlines() if not name.startswith(PACKAGE_MANAGERS_OWN)
    }


def documents_are_there(root: Path) -> None:
    for name in (
        "man/man1/fastovms.1.gz",
        "bash-completion/completions/fastovms",
        "zsh/vendor-completions/_fastovms",
        "doc/fastovms/sbom.cdx.json",
    ):
        assert (root / "usr/share" / name).stat().st_size > 1000, name
    mode = (root / CONFIGURATION).stat().st_mode & 0o777
    assert mode == 0o640, f"the configuration may be read by everybody: {mode:o}"


def units_are_valid(root: Path) -> None:
    told = inside(root, "systemd-analyze", "verify", "--man=no", *UNITS)
    assert told == "", told


@contextmanager
def served(root: Path) -> Iterator[openai.OpenAI]:
    """Serves the built-in model as a user without rights, with the state where systemd has it."""
    state = root / STATE
    state.mkdir(mode=0o700, exist_ok=True)
    shutil.chown(state, 65534, 65534)
    environ: Mapping[str, str] = {
        "STATE_DIRECTORY": f"/{STATE}",
        "XDG_CACHE_HOME": "/tmp/cache",
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    }
    command = ["chroot", "--userspec=65534:65534", root, "fastovms", "serve", "--port", "0"]
    process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = next(
            found[0]
            for line in process.stdout
            if (found := re.search(r"http://[\d.:]+", line)) is not None
        )
        with urllib.request.urlopen(f"{url}/ready") as ready:
            assert ready.status == 200
        yield openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0)
    finally:
        process.terminate()
        code = process.wait(60)
        shutil.rmtree(root / "tmp/cache", ignore_errors=True)
    assert code == 0, f"the server has ended with {code}"


def answer(root: Path) -> str:
    with served(root) as client:
        response = client.responses.create(model="demo_model", input="Hello", max_output_tokens=8)
    assert response.output_text
    return response.id


def is_still_answered(root: Path, response_id: str) -> None:
    with served(root) as client:
        assert client.responses.retrieve(response_id).id == response_id


if __name__ == "__main__":
    main()
