"""Compares what is installed with published advisories, and says so where that cannot be done.

    python .ci/audit.py REQUIREMENTS

pip-audit alone also reports success when it could look nothing up. Here the exit code is 1 for
known vulnerabilities, and 0 with a line that begins with NOT SCANNED for what it could not look up.
"""

from __future__ import annotations

import json
import subprocess
import sys

_TIMEOUT = 10
"""Seconds for one answer of the service."""


def main(requirements: str) -> int:
    command = ["pip-audit", "--requirement", requirements, "--no-deps", "--disable-pip"]
    command += ["--format", "json", "--progress-spinner", "off", "--timeout", str(_TIMEOUT)]
    audit = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        found = json.loads(audit.stdout)["dependencies"]
    except ValueError:
        # It ended before it had looked anything up.
        reason = (audit.stderr.strip().splitlines() or ["no output"])[-1]
        print(f"NOT SCANNED for known vulnerabilities: {reason}")
        return 0
    skipped = [entry["name"] for entry in found if "skip_reason" in entry]
    faults = [
        f"{entry['name']} {entry['version']}: {fault['id']}, fixed in "
        f"{', '.join(fault['fix_versions']) or 'no version'}"
        for entry in found
        for fault in entry.get("vulns", ())
    ]
    num_scanned = len(found) - len(skipped)
    print(f"{num_scanned} of {len(found)} dependencies scanned for known vulnerabilities")
    if skipped:
        which = ", ".join(skipped) if num_scanned else "all of them"
        print(f"NOT SCANNED, since their advisories could not be had: {which}")
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
