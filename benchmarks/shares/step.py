"""Where the time of a training step on 2 ranks goes, by samples of both ranks.

    python -m benchmarks.shares.step [cnn|mlp|deep|tiny ...]

Each rank trains the two copies of `benchmarks.lockstep` in turns: one communicates, the other's
ranks meet at a barrier. A sample counts for the first part whose pattern its symbol fits. For the
time that no sample has the rank did not run; the last rows tell why not, by the kernel's record of
switches in turns of their own. Needs `perf`, as root.
"""

from __future__ import annotations

import functools
import statistics
import sys
import tempfile

from benchmarks import lockstep, shares
from benchmarks.group import Group, groups
from benchmarks.shares.samples import common, sampled
from benchmarks.shares.switches import STATES, switched

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
    parts = {copy: dict.fromkeys([*PARTS, *STATES], 0.0) for copy in copies}
    pids = group.run(shares.pid)
    for turn in range(2 * _TURNS):
        copy = copies[turn % 2]
        steps = max(2, round(_SECONDS / each[copy]))
        work = functools.partial(group.run, shares.span, copy, steps)
        spans, parts_of_turn = sampled(pids, PARTS, work)
        times[copy] += [(end - begin) / steps for begin, end in spans]
        first, last = common(spans)
        for part, nanoseconds in parts_of_turn.items():
            # of the step to what both were sampled for
            scale = times[copy][-1] / (last - first) / lockstep.RANKS
            parts[copy][part] += nanoseconds / 1e9 * scale
        spans, shares_of_turn = switched(pids, work)
        for state, share in shares_of_turn.items():
            parts[copy][state] += share * (spans[0][1] - spans[0][0]) / steps
    print(f"\n{net}: us of a step of a rank\n")
    print("| part | lockstep | together | more |\n|---|---|---|---|")

    def row(name: str, seconds: list[float]) -> None:
        one, other = (1e6 * each for each in seconds)
        print(f"| {name} | {one:.0f} | {other:.0f} | {other - one:+.0f} |")

    for part in PARTS:
        row(part, [parts[copy][part] / _TURNS for copy in copies])
    step = {copy: statistics.mean(times[copy]) for copy in copies}
    ran = {copy: sum(parts[copy][part] for part in PARTS) / _TURNS for copy in copies}
    row("not running", [step[copy] - ran[copy] for copy in copies])
    row("step", [step[copy] for copy in copies])
    for state in STATES:
        row(state, [parts[copy][state] / _TURNS for copy in copies])


if __name__ == "__main__":
    main()
