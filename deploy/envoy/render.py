"""Writes the configuration for given addresses, into a folder that Envoy is then started in:

    python -m deploy.envoy.render FOLDER --listen 127.0.0.1:8080 --plain \\
        --replica 127.0.0.1:8001 --replica 127.0.0.1:8002
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

SOURCE = Path(__file__).parent
STATIC, DNS, LISTENERS, ENDPOINTS = "static.yaml", "dns.yaml", "listeners.yaml", "endpoints.yaml"
AS_THEY_ARE = ("affinity.lua", "certificate.yaml")


def render(
    folder: Path,
    *,
    listen: str,
    admin: str,
    replicas: Sequence[str] = (),
    dns: str | None = None,
    plain: bool = False,
) -> Path:
    """Returns the path of the file with which Envoy is started, in `folder`, which is created.

    Args:
        listen, admin: "address:port"; port 0 = any free one.
        replicas: addresses and ports, which `write_endpoints` may change while Envoy runs.
        dns: a name and a port instead of `replicas`: each address of the name is a replica.
        plain: whether to serve without TLS; with TLS, `folder` needs `tls/tls.crt` and
            `tls/tls.key`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in AS_THEY_ARE:
        shutil.copy(SOURCE / name, folder)
    listeners = _read(LISTENERS)
    clients = listeners["resources"][0]
    clients["address"] = _address(listen)
    if plain:
        del clients["filter_chains"][0]["transport_socket"]
    _write(folder / LISTENERS, listeners)
    bootstrap = _read(STATIC if dns is None else DNS)
    bootstrap["admin"]["address"] = _address(admin)
    for cluster in bootstrap["static_resources"]["clusters"]:
        if dns is not None and cluster["name"] != "affinity":
            cluster["load_assignment"]["endpoints"] = _endpoints([dns])
    if dns is None:
        write_endpoints(folder, replicas)
    _write(folder / (STATIC if dns is None else DNS), bootstrap)
    return folder / (STATIC if dns is None else DNS)


def write_endpoints(folder: Path, replicas: Sequence[str]) -> None:
    """Changes the replicas of a static configuration. Envoy notices the change."""
    endpoints = _read(ENDPOINTS)
    endpoints["resources"][0]["endpoints"] = _endpoints(replicas)
    _write(folder / ENDPOINTS, endpoints)


def _endpoints(addresses: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {"lb_endpoints": [{"endpoint": {"address": _address(address)}} for address in addresses]}
    ]


def _address(text: str) -> dict[str, Any]:
    host, _, port = text.rpartition(":")
    return {"socket_address": {"address": host.strip("[]"), "port_value": int(port)}}


def _read(name: str) -> Any:
    return yaml.safe_load((SOURCE / name).read_text())


def _write(path: Path, value: object) -> None:
    """Moves the file into place atomically, so that Envoy never reads an incomplete file."""
    unfinished = path.with_suffix(".new")
    unfinished.write_text(yaml.safe_dump(value, sort_keys=False))
    unfinished.rename(path)


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m deploy.envoy.render",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--listen", required=True, metavar="ADDRESS:PORT")
    parser.add_argument("--admin", default="127.0.0.1:9901", metavar="ADDRESS:PORT")
    parser.add_argument("--plain", action="store_true", help="without TLS")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--replica", action="append", default=[], metavar="ADDRESS:PORT")
    where.add_argument("--dns", metavar="NAME:PORT", help="each address of the name is a replica")
    given = parser.parse_args()
    path = render(
        given.folder,
        listen=given.listen,
        admin=given.admin,
        replicas=given.replica,
        dns=given.dns,
        plain=given.plain,
    )
    print(f"cd {path.parent} && envoy -c {path.name}")


if __name__ == "__main__":
    main()
