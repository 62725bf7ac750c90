"""Where the time of calls on one host goes, by samples of all ranks.

    python -m benchmarks.shares.one_host [NAME ...]  # of CASES

The workloads are those of `gradients`, `latency` and `allreduce`. A sample counts for the first
part whose pattern its symbol fits; while no sample has a rank, it did not run. Needs `perf`.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, NamedTuple

from benchmarks import gradients, shares, slices
from benchmarks.gradient_sets import many_small
from benchmarks.group import groups
from benchmarks.shares.samples import common, sampled

PARTS = {  # patterns of "symbol object"
    "waiting: yields, spins, sleeps": r"sched_yield|__schedule\b|schedule_|finish_task_switch|futex"
    r"|Waits::Spin|vdso_clock|pick_|_entity|update_curr|yield_task|do_syscall|entry_SYSCALL|syscall",
    "Python": r" (python|libpython)",
    "torch": r" (libtorch_cpu|libc10|libtorch_python)",
    "TensorFlow": r" (libtensorflow|_pywrap|libpywrap)",
    "horoacc: bindings, and ops of torch and TensorFlow": r" (_core|torch-ops-|tensorflow-ops-)",
    "horoacc: submission (name, entry, row)": r"Submi|Publish|MakeEntry|Name|InFlight|Request",
    "horoacc: decision": r"Decid|SegmentController|HostGroup|TakeReady|SetSegment|FusionPlan",
    "horoacc: the reduction": r"Reduce|DirectSlices|TwoPhase|WindowRing|CopyPast|ExecSlot",
    "horoacc: completion, wait and its loop": r"Completion|Waits|Driver|Executions|Release|Handle",
    "horoacc: rest": r" libhoroacc",
    "C library: allocation": r"(malloc|free|calloc|_int_|unlink_chunk|memalign).* libc",
    "C library, C++ library": r" (libc|libm|libstdc|ld-linux|\[vdso|submit-)",
    "system": r"",
}
_SECONDS = 1.5


class Case(NamedTuple):
    """A workload of a benchmark's."""

    ranks: int
    work: Any
    arguments: tuple[Any, ...]
    arena: str = "gradients"


def _set_of(how: str) -> Case:
    return Case(2, gradients.GradientWork, (many_small().shapes, how, "arena"), "all")


CASES = {
    "python": _set_of(gradients.PYTHON), "own": _set_of(gradients.HOOKS),
    "grouped": _set_of(gradients.GROUPED),
    "hvd": Case(2, slices.Rotation, (1 << 10, "torch", "in place")),
    "c10d": Case(2, slices.Rotation, (1 << 10, "torch", "c10d")),
    "empty": Case(2, slices.Rotation, (1 << 10, "torch", "empty")),
    "eager": Case(2, slices.Rotation, (1 << 20, "private", "eager")),
    "graph": Case(2, slices.Rotation, (1 << 20, "private", "graph")),
    "arena4": Case(4, slices.Rotation, (16 << 20, "arena", "in place"), "all"),
    "arena8": Case(8, slices.Rotation, (16 << 20, "arena", "in place"), "all"),
}  # fmt: skip


def main() -> None:
    """Samples the workloads, and prints a table for each."""
    for name in sys.argv[1:] or CASES:
        case = CASES[name]
        with groups(["horoacc"], case.ranks, _raise, HOROACC_ARENA=case.arena) as up:
            group = up["horoacc"]
            group.run(slices.prepare, name, case.work, case.arguments)
            each = max(group.run(slices.take, name, 20, 20))
            count = max(2, round(_SECONDS / each))
            spans, parts = sampled(
                group.run(shares.pid),
                PARTS,
                functools.partial(group.run, shares.repeat, name, count),
            )
        first, last = common(spans)
        call = sum(end - begin for begin, end in spans) / case.ranks / count
        scale = call / (last - first) / case.ranks / 1e3  # of samples' ns to us of a rank's call
        rows = [(part, scale * parts[part]) for part in PARTS if parts[part]]
        rows.append(("not running", 1e6 * call - sum(one for _, one in rows)))
        print(f"\n{name}: us of a call, or of a step, of each of {case.ranks} ranks\n")
        print("| part | time |\n|---|---|")
        for part, one in [*rows, ("all", 1e6 * call)]:
            print(f"| {part} | {one:.3g} |")


def _raise(what: str, why: str) -> None:
    raise RuntimeError(f"{what}: {why}")


if __name__ == "__main__":
    main()
