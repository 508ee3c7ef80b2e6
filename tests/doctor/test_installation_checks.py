from __future__ import annotations

from pathlib import Path

import pytest

from fastovms.doctor.finding import Level
from fastovms.doctor.installation_checks import INSTALLATION_CHECKS
from fastovms.doctor.installation_facts import (
    AddressFacts,
    DatabaseFacts,
    DirectoryFacts,
    InstallationFacts,
    SecretFacts,
)
from fastovms.engine.model.machine.device_memory import GIB

HERE = Path("/here")


def directory(
    *, exists: bool = True, is_writable: bool = True, free: int = 9 * GIB
) -> DirectoryFacts:
    return DirectoryFacts("cache", HERE, "--cache-dir", exists, is_writable, free)


@pytest.mark.parametrize(
    ("facts", "level", "words"),
    [
        (directory(), Level.OK, "/here is there, with 9.0 GiB free"),
        (directory(exists=False), Level.OK, "is made at the first start"),
        (directory(is_writable=False), Level.PROBLEM, "cannot be written"),
        (directory(free=GIB // 2), Level.WARNING, "0.5 GiB free"),
        (DirectoryFacts("cache", None, "--cache-dir"), Level.NOTE, "every start compiles"),
        (SecretFacts("API keys", HERE, 0o640, True), Level.OK, "/here (640)"),
        (SecretFacts("API keys", HERE, 0o644, True), Level.WARNING, "every user"),
        (SecretFacts("API keys", HERE, 0o600, False), Level.PROBLEM, "cannot be read"),
        (SecretFacts("API keys", HERE, None, False), Level.PROBLEM, "there is no /here"),
        (AddressFacts("a:1", None), Level.OK, "a:1 is free"),
        (AddressFacts("a:1", "in use"), Level.WARNING, "listened on now: in use"),
        (DatabaseFacts("postgresql://h/d", None), Level.OK, "answers"),
        (DatabaseFacts("postgresql://h/d", "refused"), Level.PROBLEM, "h/d: refused"),
    ],
)
def test_what_is_told(
    facts: DirectoryFacts | SecretFacts | AddressFacts | DatabaseFacts, level: Level, words: str
) -> None:
    installation = InstallationFacts(
        (facts,) if isinstance(facts, DirectoryFacts) else (),
        (facts,) if isinstance(facts, SecretFacts) else (),
        (facts,) if isinstance(facts, AddressFacts) else (),
        facts if isinstance(facts, DatabaseFacts) else None,
    )
    [finding] = [found for check in INSTALLATION_CHECKS for found in check(installation)]
    assert finding.level is level
    assert words in finding.text
