"""Runs the image as Kubernetes would, on a root that cannot be written, and ends it while it works:

    python -m tests.deploy.run_image [IMAGE]

It needs root, buildah, and the image in its storage (deploy/image.sh). The command line is that of
the overlay `demo`, and so are the user and the directories that can be written.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import urllib3

from fastovms import __version__
from tests.deploy.manifests import Resource, of_kind, our_containers, overlay

PORT = 18000
START = 120.0
DEVICES = ("null", "zero", "random", "urandom")


def main() -> None:
    image = sys.argv[1] if len(sys.argv) > 1 else f"fastovms:{__version__}"
    container = buildah("from", f"localhost/{image}")
    try:
        run(Path(buildah("mount", container)))
    finally:
        buildah("umount", container)
        buildah("rm", container)
    print("the image serves without a privilege, drains and leaves")


def buildah(*arguments: str) -> str:
    command = ["buildah", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def run(root: Path) -> None:
    resources = overlay("demo")
    [(container, pod)] = our_containers(resources)
    with served(root, container, pod, resources) as server:
        wait_until(200)
        status = Path(f"/proc/{server.pid}/status").read_text()
        fields = dict(line.split(":\t", 1) for line in status.splitlines())
        assert set(fields["Uid"].split()) == {str(pod["securityContext"]["runAsUser"])}
        assert int(fields["CapEff"], 16) == 0
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{PORT}/v1", api_key="none")
        options = {"ignore_eos": True}
        stream = client.completions.create(
            model="demo", prompt="Once", max_tokens=1500, stream=True, extra_body=options
        )
        next(stream)
        server.send_signal(signal.SIGTERM)
        wait_until(503)
        late = client.completions.create(model="demo", prompt="Once upon", max_tokens=4)
        assert late.choices[0].finish_reason == "length", "a request before the end of the delay"
        *_, last = stream
        assert last.choices[0].finish_reason == "length", "a stream that ran is cut"
        assert server.wait(60) == 0


def wait_until(status: int) -> None:
    """Returns when /ready answers with this status."""
    deadline = time.monotonic() + START
    while time.monotonic() < deadline:
        try:
            url = f"http://127.0.0.1:{PORT}/ready"
            if urllib3.request("GET", url, retries=False).status == status:
                return
        except urllib3.exceptions.HTTPError:
            pass
        time.sleep(0.05)
    raise AssertionError(f"/ready did not answer with {status}")


@contextmanager
def served(
    root: Path, container: Resource, pod: Resource, resources: list[Resource]
) -> Iterator[subprocess.Popen[bytes]]:
    """Starts the server in mounts of its own, which end with it."""
    [config] = of_kind(resources, "ConfigMap")
    variables = config["data"] | {it["name"]: it["value"] for it in container["env"]}
    variables |= {"PATH": "/opt/fastovms/bin:/usr/bin:/bin", "HOME": "/tmp"}
    user = pod["securityContext"]["runAsUser"]
    arguments = [*container["args"], "--host=127.0.0.1", f"--port={PORT}"]
    lines = ["set -e", f"mount --bind {root} {root}", f"mount -o remount,ro,bind {root}"]
    for mount in container["volumeMounts"]:
        lines.append(f"mount -t tmpfs -o mode=1777 tmpfs {root}{mount['mountPath']}")
    lines += [f"mount -t tmpfs tmpfs {root}/dev", f"mount -t proc proc {root}/proc"]
    for name in DEVICES:
        lines += [f"touch {root}/dev/{name}", f"mount --bind /dev/{name} {root}/dev/{name}"]
    chroot = ["chroot", f"--userspec={user}:{user}", "--groups=", str(root), "fastovms"]
    lines.append("exec " + shlex.join([*chroot, *arguments]))
    server = subprocess.Popen(
        ["unshare", "--mount", "bash", "-c", "\n".join(lines)],
        env={**variables, "PATH": f"{variables['PATH']}:{os.environ['PATH']}"},
        stdout=subprocess.DEVNULL,
    )
    try:
        yield server
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    main()
