from __future__ import annotations

import logging
import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

SLOW = frozenset(
    ("app", "backends", "bench", "clients", "deploy", "docs", "gguf", "load_test", "ui")
)
"""The folders whose tests are slow: they run processes, real models, browsers or daemons."""

MISSING = " is missing: "
"""Separates the program from the command that installs it in the reason of a skipped test."""

NEEDS_CURL = pytest.mark.skipif(
    shutil.which("curl") is None, reason=f"curl{MISSING}apt-get install curl"
)

CACHE = Path(__file__).parents[1] / ".pytest_cache"

SCRATCH = CACHE / f"scratch-{os.getpid()}"
"""Models that the tests of this process share; deleted at the end of the session."""

# What others leave in a home directory (Chromium, OpenVINO) stays in the clone, and so do kernels,
# which are not compiled again each time. Both are read when packages are imported.
(CACHE / "home").mkdir(parents=True, exist_ok=True)
SCRATCH.mkdir(exist_ok=True)
os.environ["HOME"] = str(CACHE / "home")
os.environ.setdefault("NUMBA_CACHE_DIR", str(CACHE / "kernels"))


def is_slow(path: Path) -> bool:
    """Returns whether all tests of a file are slow: those in slow folders, and those of whole
    servers, which are in no folder and belong to no file of the package."""
    root = Path(__file__).parent
    folders = path.relative_to(root).parts[:-1]
    if not folders:
        name = path.name.removeprefix("test_")
        return name != "layers.py" and not (root.parent / "fastovms" / name).exists()
    return folders[0] in SLOW or folders[:2] in (("engine", "model"), ("engine", "kernels"))


def nightly_items(items: list[pytest.Item]) -> list[pytest.Item]:
    """Returns the tests that run only on request: `nightly(but=("a", "b"))` marks all tests except
    those whose names contain one of these texts. Each text must occur in a name."""
    marked = [
        (item, marker.kwargs.get("but", ()))
        for item in items
        if (marker := item.get_closest_marker("nightly")) is not None
    ]
    found = {(item.path, text) for item, but in marked for text in but if text in item.name}
    return [
        item
        for item, but in marked
        if all((item.path, text) in found and text not in item.name for text in but)
    ]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skips files without tests of the requested part, because importing them takes long."""
    if not collection_path.name.startswith("test_"):
        return None
    if config.option.markexpr == "not slow":
        return True if is_slow(collection_path) else None
    if config.option.markexpr == "slow" and not is_slow(collection_path):
        return True if "mark.slow" not in collection_path.read_text() else None
    return None


def pytest_pycollect_makemodule(module_path: Path) -> None:
    """Configures Hypothesis before the first file that uses it is imported, because importing it
    takes long. The deadline is off, because a busy machine generates examples slowly.
    HYPOTHESIS_EXAMPLES sets the number of examples of tests that do not set it."""
    if "hypothesis" in module_path.read_text():
        from hypothesis import HealthCheck, settings

        settings.register_profile(
            "busy",
            max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "60")),
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
        )
        settings.load_profile("busy")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the tests of slow files and sorts the longest ones first, so that workers end together.
    Deselects nightly tests unless the marker or a test is named."""
    for item in items:
        if is_slow(item.path):
            item.add_marker(pytest.mark.slow)
    if "nightly" not in config.option.markexpr and not any("::" in name for name in config.args):
        nightly = set(nightly_items(items))
        config.hook.pytest_deselected(items=list(nightly))
        items[:] = [item for item in items if item not in nightly]
    root = Path(__file__).parent
    first = ("ui", "bench", "deploy", "app")
    items.sort(key=lambda item: item.path.relative_to(root).parts[0] not in first)


def pytest_sessionfinish() -> None:
    """Deletes shared models. Workers of xdist end without calling functions of `atexit`."""
    shutil.rmtree(SCRATCH, ignore_errors=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints a line with the programs whose absence has skipped tests, and the command that
    installs them."""
    skipped = terminalreporter.stats.get("skipped", ())
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    missing = [f"{reason} ({count})" for reason, count in reasons.items() if MISSING in reason]
    if missing:
        terminalreporter.write_line(f"Skipped tests: {'; '.join(sorted(missing))}")


@pytest.fixture(scope="session", autouse=True)
def user_directories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Separates servers under test from the user's directories."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True)
def signal_handlers() -> Iterator[None]:
    """Restores signal handlers. A server in a test leaves signals ignored when it ends; later child
    processes would inherit that and could not be stopped."""
    handlers = {
        number: signal.getsignal(number)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    }
    yield
    for number, handler in handlers.items():
        if signal.getsignal(number) != handler:
            signal.signal(number, handler)


@pytest.fixture(autouse=True)
def log_levels() -> Iterator[None]:
    """A command that runs within a test sets the levels of this process's log; the levels are
    restored so that later tests capture every record."""
    loggers = (logging.getLogger(), logging.getLogger("fastovms"))
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
