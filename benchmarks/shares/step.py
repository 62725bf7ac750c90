"""Where the time of a training step on 2 ranks goes, by samples of both ranks.

    python -m benchmarks.shares.step [cnn|mlp|deep|tiny ...]

Each rank trains the two copies of `benchmarks.lockstep` in turns: one communicates, the other's
ranks meet at a barrier. A sample counts for the first part whose pattern its symbol fits. For the
time that no sample has the rank did not run. Needs `perf`.
"""

from __future__ import annotations

import collections
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import lockstep, shares
from benchmarks.group import Group, groups

PARTS = {  # patterns of "symbol object"
    "waiting: yields, spins, sleeps": r"barrier-|sched_yield|__schedule\b|finish_task_switch|futex"
    r"|Waits::Spin|vdso_clock",
    "torch: kernels, autograd, optimizer": r" (libtorch_cpu|libc10|libgomp|torch_cpu|libmkl)",
    "Python and torch's binding": r" (python|libtorch_python|libpython)",
    "horoacc: hooks": r" torch-ops-",
    "horoacc: the reduction": r"Reduce(Direct|Range|Bytes|Slice)|DirectSlices|CopyPast",
    "horoacc: plan, rows, decisions, completion": r"LockedPlan|Publish|Submit|Decid|HostGroup"
    r"|SegmentController|AppendPieces|AllShared|TakeReady|Driver|Executions|Completion",
    "horoacc: arena": r"Arena|std::_Hashtable<unsigned long.* libhoroacc|SizeClass",
    "horoacc: rest": r" libhoroacc",
    "C library: allocation": r"(malloc|free|calloc|_int_|unlink_chunk|memalign).* libc",
    "C library: rest": r" (libc|libm|libstdc|ld-linux|\[vdso)",
    "system, and kernels that torch compiles": r"",
}
_TURNS, _SECONDS, _HERTZ = 4, 1.0, 2500


def main() -> None:
    """Samples the nets, and prints a table for each."""
    for net in sys.argv[1:] or ["cnn", "mlp", "deep"]:
        with (
            groups(["horoacc"], lockstep.RANKS, _raise, False, HOROACC_ARENA="gradients") as up,
            tempfile.NamedTemporaryFile(dir="/dev/shm") as barrier,
        ):
            barrier.truncate(4096)
            up["horoacc"].run(lockstep.open_barrier, barrier.name)
            up["horoacc"].run(lockstep.build, net, "optimizer")
            _show(net, up["horoacc"])


def _raise(what: str, why: str) -> None:
    raise RuntimeError(f"{what}: {why}")


def _show(net: str, group: Group) -> None:
    copies = (lockstep.ALONE, lockstep.TOGETHER)
    each = {copy: max(group.run(lockstep.train, copy, 60)) for copy in copies}  # until it is locked
    times: dict[str, list[float]] = {copy: [] for copy in copies}
    parts = {copy: dict.fromkeys(PARTS, 0.0) for copy in copies}
    pids = ",".join(map(str, group.run(shares.pid)))
    for turn in range(2 * _TURNS):
        copy = copies[turn % 2]
        steps = max(2, round(_SECONDS / each[copy]))
        with tempfile.TemporaryDirectory() as folder:
            data = str(Path(folder) / "samples")
            recorder = subprocess.Popen(
                ["perf", "record", "-q", "-k", "mono", "-F", str(_HERTZ), "-p", pids, "-o", data],
                stderr=subprocess.DEVNULL,
            )
            time.sleep(0.3)  # until it samples; the ranks sleep
            spans = group.run(shares.span, copy, steps)
            recorder.send_signal(signal.SIGINT)
            recorder.wait()
            times[copy] += [(end - begin) / steps for begin, end in spans]
            first, last = max(begin for begin, _ in spans), min(end for _, end in spans)
            for part, nanoseconds in _samples(data, first, last).items():
                scale = times[copy][-1] / (
                    last - first
                )  # of the step to what both were sampled for
                parts[copy][part] += nanoseconds / 1e3 * scale
    step = {copy: 1e6 * statistics.mean(times[copy]) for copy in copies}
    alone, together = (
        {part: microseconds / _TURNS / lockstep.RANKS for part, microseconds in parts[copy].items()}
        for copy in copies
    )
    rows = [(part, alone[part], together[part]) for part in PARTS]
    ran = [sum(alone.values()), sum(together.values())]
    rows.append(("not running", step[copies[0]] - ran[0], step[copies[1]] - ran[1]))
    rows.append(("step", step[copies[0]], step[copies[1]]))
    print(f"\n{net}: us of a step of a rank\n")
    print("| part | lockstep | together | more |\n|---|---|---|---|")
    for part, one, other in rows:
        print(f"| {part} | {one:.0f} | {other:.0f} | {other - one:+.0f} |")


def _samples(data: str, first: float, last: float) -> collections.Counter[str]:
    """The nanoseconds of each part between two points of time, all threads of both ranks."""
    shown = subprocess.run(
        ["perf", "report", "-i", data, "--no-children", "-F", "period,sym,dso", "-t", "\t",
         "--time", f"{first:.6f},{last:.6f}"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True,
    ).stdout  # fmt: skip
    counts: collections.Counter[str] = collections.Counter()
    for line in shown.splitlines():
        fields = [field.strip() for field in line.split("\t")]
        if len(fields) == 3 and fields[0].isdigit():
            what = f"{fields[1]} {fields[2]}"
            part = next(part for part, pattern in PARTS.items() if re.search(pattern, what))
            counts[part] += int(fields[0])
    return counts


if __name__ == "__main__":
    main()
