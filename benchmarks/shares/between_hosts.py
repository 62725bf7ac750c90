"""Where the time of a small allreduce between two hosts goes, by samples of both ranks' stacks.

    python -m benchmarks.shares.between_hosts [bytes]

A sample counts for the first part below of which a function is on its stack; the parts' times are
their shares of the cores' time that a call takes. It needs `perf`, and hosts are parts of one job.
"""

from __future__ import annotations

import collections
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PARTS = {
    "decode": r"GetReady|DirectExchange::Offer",
    "reduce": r"ReduceEager",
    "sendto": r"sendto",
    "recv": r"__libc_recv",
    "epoll_wait": r"epoll_wait",
    "sched_yield": r"sched_yield",
    "receive: frame and checksum": r"ControlMux::Next|TcpControlLinks::(Receive|LookAt)",
    "send: frame and checksum": r"ControlMux::Send|FrameWriter",
    "encode": r"PutReady",
    "news: rows, inputs": r"HostLog::(NewsOf|AddInputs)",
    "log": r"HostLog::|HostGroup::(Publish|RingMembers|RingingLock)|Leader::Settle",
    "leader, rest": r"Leader::",
    "publish: row, staged copy": r"Publisher::P[lu]",
    "announce": r"::Announce",
    "complete": r"Completion::|Driver::(End|Drain)",
    "begin: note, output": r"Driver::(Begin|Run)|MultiHostController::Next",
    "submit, rest": r"Engine::Submit|ha_submit",
    "turns of the loop, rest": r"Driver::Progress|ControlMux::",
    "wait, rest": r"Waits::|ha_wait",
    "Python and its binding": r"",
}
_RANK = """
import sys, time, numpy as np, horoacc as hvd
hvd.init()
array = np.zeros(int(sys.argv[1]) // 4, np.float32)
times, used, end = [], time.process_time(), time.perf_counter() + 6
while hvd.allreduce_(array, name="x", op=hvd.Max)[0] == 0:
    now = time.perf_counter()
    times.append(now)
    array[0] = now > end
steps = np.diff(times)
print("shares", np.median(steps), (time.process_time() - used) / len(times), flush=True)
hvd.shutdown()
"""


def main() -> None:
    """Runs the job, samples two seconds of it, and prints the table."""
    size = sys.argv[1] if len(sys.argv) > 1 else "4096"
    job = subprocess.Popen(
        [sys.executable, "-m", "horoacc.launcher.main", "--tcp", "-np", "2",
         sys.executable, "-c", _RANK, size],
        env=os.environ | {"HOROACC_SIMULATED_HOSTS": "1+1"}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    time.sleep(3)
    with tempfile.TemporaryDirectory() as folder:
        data = str(Path(folder) / "samples")
        subprocess.run(
            ["perf", "record", "-a", "--call-graph", "dwarf,16384", "-F", "999", "-o", data, "--",
             "sleep", "2"], stderr=subprocess.DEVNULL, check=True,
        )  # fmt: skip
        shown = subprocess.run(
            ["perf", "script", "-i", data, "-F", "comm,ip,sym", "--comm", "python"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True,
        ).stdout  # fmt: skip
    lines = [line.split() for line in job.communicate()[0].splitlines() if "shares" in line]
    median, used = (1e6 * sum(float(line[k]) for line in lines) / len(lines) for k in (-2, -1))
    patterns = {part: re.compile(pattern) for part, pattern in PARTS.items()}
    counts: collections.Counter[str] = collections.Counter()
    for stack in shown.split("\n\n"):
        symbols = [line.strip().partition(" ")[2] for line in stack.splitlines()[1:]]
        if symbols:
            counts[next(p for p, r in patterns.items() if any(map(r.search, symbols)))] += 1
    print(f"a call takes {median:.1f} us, and {used:.1f} us of each rank's core, of which")
    for part, count in counts.most_common():
        print(f"{part:<30}{used * count / counts.total():5.1f}")


if __name__ == "__main__":
    main()
