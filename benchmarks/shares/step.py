"""Where the time of a training step on 2 ranks goes, by samples of both ranks.

    python -m benchmarks.shares.step [cnn|mlp|deep|tiny ...]

Each rank trains the two copies of `benchmarks.lockstep` in turns: one communicates, the other's
ranks meet at a barrier. A sample counts for the first part whose pattern its symbol fits. For the
time that no sample has the rank did not run. Needs `perf`.
"""

from __future__ import annotations

import functools
import statistics
import sys
import tempfile

from benchmarks import lockstep, shares
from benchmarks.group import Group, groups
from benchmarks.shares.samples import common, sampled

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
_TURNS, _SECONDS = 4, 1.0


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
    pids = group.run(shares.pid)
    for turn in range(2 * _TURNS):
        copy = copies[turn % 2]
        steps = max(2, round(_SECONDS / each[copy]))
        spans, parts_of_turn = sampled(
            pids, PARTS, functools.partial(group.run, shares.span, copy, steps)
        )
        times[copy] += [(end - begin) / steps for begin, end in spans]
        first, last = common(spans)
        for part, nanoseconds in parts_of_turn.items():
            # of the step to what both were sampled for
            scale = times[copy][-1] / (last - first)
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


if __name__ == "__main__":
    main()
