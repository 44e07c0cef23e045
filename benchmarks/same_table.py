"""One study of 24 trainings in every way: one process, local processes, Ray, and Ray with a node or its driver killed.

    python benchmarks/same_table.py [--seeds 6] [--epochs 3] [--ways one local ray ray-killed ray-driver-killed]
                                    [--out benchmarks/results/same_table.json]

Four methods on the embedded digits. Checked: comparison.json and the weights of every training are the same bytes in
every way. Ray's ways need the extra ray and start two nodes on this machine; ray-killed kills the node of a training
that is under way, ray-driver-killed the command that ordered it, which is then given again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from record import write_result

from holdfast.comparisons.running import compare
from holdfast.executors.leases import CELLS, holder

METHODS = ("erm", "lff", "mixup", "label-smoothing")
WAYS = ("one", "local", "ray", "ray-killed", "ray-driver-killed")
FAST_HEALTH = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 8}


@contextmanager
def ray_nodes() -> Iterator[Any]:
    """Two Ray nodes on this machine beside a head that takes no work; Ray is connected to them."""
    os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": FAST_HEALTH})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    try:
        yield cluster, nodes
    finally:
        ray.shutdown()
        cluster.shutdown()


@contextmanager
def killed(out: Path, cluster: Any, nodes: list[Any]) -> Iterator[list[str]]:
    """Kill one of the nodes, workers and all, once it trains something that has a checkpoint."""
    ended = threading.Event()
    found: list[str] = []

    def watch() -> None:
        node = nodes[0]
        store = node.node_id
        while not found and not ended.wait(0.02):
            for area in (out / CELLS).glob("*"):
                held = holder(out, area.name)
                if held is not None and held.status.startswith("epoch") and _node_of(held.who["pid"]) == store:
                    found.append(area.name)
                    cluster.remove_node(node, allow_graceful=False)
                    return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


def kill_driver(out: Path, asked: dict[str, Any]) -> str:
    """Give the command in another process, and kill that once a training has a checkpoint; which one that was."""
    code = "import json, sys; from holdfast.comparisons.running import compare; compare(**json.loads(sys.argv[1]))"
    driver = subprocess.Popen([sys.executable, "-c", code, json.dumps(asked, default=str)])
    try:
        while driver.poll() is None:
            for area in (out / CELLS).glob("*"):
                held = holder(out, area.name)
                if held is not None and held.status.startswith("epoch"):
                    return area.name
            time.sleep(0.02)
    finally:
        driver.kill()
        driver.wait()
    raise AssertionError("nothing was under way: the trainings were too short")


def _node_of(pid: int) -> str | None:
    """The Ray node that a process works for, as its command line says; its raylet is its parent."""
    try:
        parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        words = Path(f"/proc/{parent}/cmdline").read_text().split("\0")
        return next((word.partition("=")[2] for word in words if word.startswith("--node_id=")), None)
    except OSError:
        return None


def result_of(out: Path) -> tuple[str, dict[str, str]]:
    """The table, and a hash of each training's weights."""
    weights = {path.parent.name: hashlib.sha256(path.read_bytes()).hexdigest()[:16]
               for path in sorted(out.glob("*/model.safetensors"))}  # fmt: skip
    return (out / "comparison.json").read_text(), weights


def study(way: str, out: Path, **settings: Any) -> dict[str, Any]:
    began, extra = time.monotonic(), {}
    asked = {"out": out, "methods": METHODS, "device": "cpu", "progress": False, **settings}
    if way in ("one", "local"):
        compare(**asked, parallel=1 if way == "one" else 2)
    else:
        with ray_nodes() as (cluster, nodes):
            asked |= {"engine": "ray", "address": cluster.address}
            if way == "ray-driver-killed":
                extra = {"killed_at": kill_driver(out, asked)}
            if way == "ray-killed":
                with killed(out, cluster, nodes) as found:
                    compare(**asked)
                assert found, "no node was killed: the trainings were too short"
                extra = {"killed_at": found[0]}
            else:
                compare(**asked)
    return {"way": way, "seconds": time.monotonic() - began, "trainings": len(result_of(out)[1]), **extra}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows, results = [], []
    with tempfile.TemporaryDirectory() as place:
        for way in args.ways:
            out = Path(place) / way
            row = study(way, out, data="digits", val=0.1, seeds=args.seeds, epochs=args.epochs)
            results.append(result_of(out))
            rows.append(row | {"same": results[-1] == results[0]})
            print(json.dumps(rows[-1]), flush=True)
    if args.out is not None:
        write_result(args.out, {"rows": rows, "weights": results[0][1]}, gpu=False)
    assert all(row["same"] for row in rows), "the tables differ"


if __name__ == "__main__":
    main()
