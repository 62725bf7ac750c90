"""What `horoaccrun` in pods adds to their own start; docs/kubernetes.md has the figures.

    .venv-engines/bin/python tests/engines/k8s/start_cost.py

Prints medians in seconds: from the start of the pods' first processes until all ranks have met in
`init()`, and until Python has imported HoroACC in each pod. A container's start is in neither.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import conftest
from pods import Pods

from benchmarks.lab import Laboratory, Network

ROUNDS = 9
IMPORT = (sys.executable, "-c", "import horoacc, time; print(time.time())")
INIT = (sys.executable, "-c", "import horoacc, time; horoacc.init(); print(time.time())")


def seconds(pods: Pods, count: int, *command: str) -> float:
    begun = time.time()
    running: list[subprocess.Popen[str]] = [pods.start(each, *command) for each in range(count)]
    texts = pods.end(running)
    told = [float(word) for text in texts for word in text.split() if word[:1].isdigit()]
    return max(word for word in told if word > 1e9) - begun


def main() -> None:
    for count, elastic in ((2, ()), (3, ()), (2, ("--min-np", "2"))):
        with Laboratory(Network(hosts=conftest.PODS)) as lab:
            folder = Path(tempfile.mkdtemp(prefix="horoacc-pods-"))
            pods = Pods(lab, folder, count, ("-np", str(count), *elastic, *INIT))
            own, bare = [], []
            for number in range(ROUNDS + 1):
                took = seconds(pods, count, *IMPORT), seconds(pods, count)
                if number:  # the first round reads files
                    bare.append(took[0])
                    own.append(took[1])
            print(f"{count} pods {' '.join(elastic)}: imported {statistics.median(bare):.2f}, met "
                  f"{statistics.median(own):.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
