"""Runs `serve run` with the YAML of `deploy/ray` on a Ray cluster of two nodes, each with one
processor, until its standard input ends.

python -m tests.deploy.ray_cluster PORT SERVER_ARGUMENT ...
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml
from ray.cluster_utils import Cluster

YAML = Path(__file__).parents[2] / "deploy" / "ray" / "serve.yaml"
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
NUM_ATTEMPTS = 3
SETTINGS = {
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.5",
    "RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.5",
}


def small_config(port: int, arguments: list[str]) -> str:
    """The YAML for this cluster, where scaling takes seconds."""
    config = yaml.safe_load(YAML.read_text())
    config["http_options"] = {"host": "127.0.0.1", "port": port}
    config["proxy_location"] = "HeadOnly"
    [application] = config["applications"]
    application["args"]["arguments"] += arguments
    [deployment] = application["deployments"]
    deployment["ray_actor_options"]["num_cpus"] = 1
    deployment["autoscaling_config"] |= {
        "max_replicas": 2,
        "target_ongoing_requests": 4,
        "upscale_delay_s": 0,
        "look_back_period_s": 11,
        "aggregation_function": "max",
    }
    return yaml.safe_dump(config)


def start_cluster() -> Cluster:
    """Tries again where the machine is so busy that a node takes longer than Ray gives it (30 s).
    What a failed attempt leaves, Ray ends with this process."""
    for _ in range(NUM_ATTEMPTS - 1):
        with contextlib.suppress(Exception):
            return Cluster(initialize_head=True, head_node_args=NODE)
    return Cluster(initialize_head=True, head_node_args=NODE)


def main(port: str, *arguments: str) -> None:
    os.environ.update(SETTINGS)
    cluster = start_cluster()
    try:
        cluster.add_node(**NODE)
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(small_config(int(port), list(arguments)))
            file.flush()
            serve = [sys.executable, "-m", "ray.serve.scripts", "run", file.name]
            running = subprocess.Popen([*serve, "--address", cluster.address])
            sys.stdin.read()
            running.send_signal(signal.SIGINT)
            running.wait()
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
