"""Measures how many leases a coordinator serves: `python -m benchmarks.leases [--json]`.

Clients are threads of one other process: each fetches batches as fast as it can, while the model's
owner tells what is consumed and commits. The coordinator is a process of its own, as in a job.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time

from elastic_trainer import Ledger, ShardClient

SIZE = 64
LEASES = 10**7
COMMIT_SECONDS = 0.5


def measure(address: str, clients: int, batch: int, seconds: float, data: str) -> dict[str, float]:
    ledger = Ledger(samples=SIZE * LEASES, epochs=1, size=SIZE)
    owner = ShardClient(address, ledger=ledger, data=data)
    owner.tell()
    counts, latencies, stop = [0] * clients, [[] for _ in range(clients)], threading.Event()
    done = threading.Lock()

    def work(index: int) -> None:
        shards = ledger.shards
        with ShardClient(
            address, samples=shards.samples, epochs=1, size=shards.size, data=data
        ) as client:
            while not stop.is_set():
                began = time.perf_counter()
                leases = client.fetch(batch)
                latencies[index].append(time.perf_counter() - began)
                with done:
                    counts[index] += sum(map(ledger.add, leases))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(clients)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    step = 0
    while time.perf_counter() - began < seconds:
        time.sleep(COMMIT_SECONDS)
        with done:
            owner.commit(step := step + 1)
    took = time.perf_counter() - began
    total = sum(counts)
    stop.set()
    for thread in threads:
        thread.join(30)
    owner.close()
    return {
        "clients": clients,
        "batch": batch,
        "leases_per_second": round(total / took),
        "fetch_ms_p50": round(statistics.median(t for found in latencies for t in found) * 1e3, 2),
        "commits": step,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.leases", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--json", action="store_true", help="one JSON line")
    options = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    coordinator = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "elastic_trainer.coordinator",
            "--port",
            str(port),
            "--job",
            "bench",
        ],
        stderr=subprocess.DEVNULL,
    )
    try:
        rows = [
            measure(f"127.0.0.1:{port}", clients, batch, options.seconds, f"{clients}x{batch}")
            for clients, batch in ((1, 1), (1, 100), (16, 1), (16, 100))
        ]
    finally:
        coordinator.terminate()
        coordinator.wait(10)
    load = round(os.getloadavg()[0], 1)
    if options.json:
        print(json.dumps({"load": load, "rows": rows}))
        return 0
    print(f"load {load}; goal: 10,000 leases/s in batches")
    for row in rows:
        print(", ".join(f"{name} {value}" for name, value in row.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
