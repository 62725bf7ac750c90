"""What HoroACC adds to srun's own start, in seconds; runs in an allocation of two tasks.

    salloc -N2 -n2 python tests/engines/slurm/start_cost.py

Prints the medians of five rounds: of srun itself, of what `init()` adds to tasks of srun that
import HoroACC, and of what `horoaccrun` adds to srun for the same tasks.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time

ROUNDS = 5
IMPORT = "import horoacc"
INIT = "import horoacc; horoacc.init(); horoacc.shutdown()"
SRUN = ("srun", "--overlap", "-n2", sys.executable, "-c")
HOROACCRUN = (sys.executable, "-m", "horoacc.launcher.main", "-np", "2", sys.executable, "-c")


def seconds(*command: str) -> float:
    began = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def main() -> None:
    commands = {
        "srun": (*SRUN[:-2], "true"),
        "import": (*SRUN, IMPORT),
        "init": (*SRUN, INIT),
        "horoaccrun": (*HOROACCRUN, INIT),
    }
    took = {name: [seconds(*command)] for name, command in commands.items()}
    for _ in range(ROUNDS):
        for name, command in commands.items():
            took[name].append(seconds(*command))
    median = {name: statistics.median(times[1:]) for name, times in took.items()}
    told = {
        "srun": median["srun"],
        "init": median["init"] - median["import"],
        "horoaccrun": median["horoaccrun"] - median["init"],
        "load": os.getloadavg()[0],
    }
    print(json.dumps({name: round(value, 3) for name, value in told.items()}))


if __name__ == "__main__":
    main()
