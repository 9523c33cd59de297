"""Nodes of a check, as threads of a process that forks their trials' processes.

`members.py PORT COUNT [INDEX=FAULT …]` prints what each was told at the end, by index,
and the processes that did not end with the check.
"""

import json
import os
import subprocess
import sys
import threading

from elastic_trainer.launch.zygote import Zygote
from elastic_trainer.node_check.measurement import FAULT_VARIABLE
from elastic_trainer.node_check.member import Member

SECONDS = 300.0


def main() -> None:
    port, count = int(sys.argv[1]), int(sys.argv[2])
    faults = dict(given.split("=") for given in sys.argv[3:])
    os.environ["OMP_NUM_THREADS"] = "1"
    zygote = Zygote.start(["torch", "torch.distributed"])
    one_at_a_time = threading.Lock()
    told = {"left behind": []}
    started = []

    def take_part(index: int) -> None:
        def launch(arguments, environment, outputs):
            environment[FAULT_VARIABLE] = faults.get(str(index), "")
            with one_at_a_time:
                started.append(zygote.launch(arguments, environment, outputs))
                return started[-1]

        member = Member(
            agent=f"agent-{index}",
            node=f"node-{index}",
            pod_index=index,
            address="127.0.0.1",
            host="127.0.0.1",
            port=port,
            token="",
            processes=1,
            launch=launch,
        )
        over = member.run(SECONDS)
        told[index] = [over.verdict, over.reason]

    assert zygote.wait_ready(SECONDS)
    threads = [threading.Thread(target=take_part, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for process in started:
        try:
            process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            told["left behind"].append(process.pid)
    zygote.close()
    print(json.dumps(told))


if __name__ == "__main__":
    main()
