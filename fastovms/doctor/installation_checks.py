"""Judges an installation: each check takes the facts and yields what it finds."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from typing import Final

from fastovms.doctor.finding import Finding, Level
from fastovms.doctor.installation_facts import InstallationFacts
from fastovms.engine.model.machine.device_memory import GIB

InstallationCheck = Callable[[InstallationFacts], Iterator[Finding]]

_LITTLE_SPACE: Final = GIB
_OTHERS: Final = stat.S_IRWXO


def check_directories(facts: InstallationFacts) -> Iterator[Finding]:
    for directory in facts.directories:
        topic = f"{directory.name} directory"
        if directory.path is None:
            yield Finding(
                Level.NOTE,
                topic,
                "there is none: every start compiles and measures anew",
                directory.flag,
            )
            continue
        there = f"{directory.path}"
        if not directory.is_writable:
            yield Finding(
                Level.PROBLEM,
                topic,
                f"{there} cannot be written by this user",
                f"another {directory.flag}, or its permissions",
            )
            continue
        state = "is there" if directory.exists else "is made at the first start"
        text = f"{there} {state}, with {directory.free / GIB:.1f} GiB free"
        if directory.free < _LITTLE_SPACE:
            yield Finding(Level.WARNING, topic, text, f"make room, or another {directory.flag}")
        else:
            yield Finding(Level.OK, topic, text)


def check_database(facts: InstallationFacts) -> Iterator[Finding]:
    database = facts.database
    if database is None:
        return
    if database.fault is None:
        yield Finding(Level.OK, "state database", f"{database.address} answers")
    else:
        yield Finding(
            Level.PROBLEM,
            "state database",
            f"{database.address}: {database.fault}",
            "--state-url, its password and its network",
        )


def check_secrets(facts: InstallationFacts) -> Iterator[Finding]:
    for secret in facts.secrets:
        if secret.mode is None:
            yield Finding(
                Level.PROBLEM, secret.name, f"there is no {secret.path} that this user can see"
            )
        elif not secret.is_readable:
            yield Finding(
                Level.PROBLEM,
                secret.name,
                f"{secret.path} cannot be read by this user",
                "its owner, or its permissions",
            )
        elif secret.mode & _OTHERS:
            yield Finding(
                Level.WARNING,
                secret.name,
                f"{secret.path} can be read or changed by every user of the machine "
                f"({secret.mode:o})",
                f"chmod o= {secret.path}",
            )
        else:
            yield Finding(Level.OK, secret.name, f"{secret.path} ({secret.mode:o})")


def check_addresses(facts: InstallationFacts) -> Iterator[Finding]:
    for place in facts.addresses:
        if place.fault is None:
            yield Finding(Level.OK, "address", f"{place.address} is free")
        else:
            yield Finding(
                Level.WARNING,
                "address",
                f"{place.address} cannot be listened on now: {place.fault}",
                "--port or --host, unless it is this very server that runs there",
            )


INSTALLATION_CHECKS: Final[tuple[InstallationCheck, ...]] = (
    check_directories,
    check_database,
    check_secrets,
    check_addresses,
)
