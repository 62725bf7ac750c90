"""A blocking allreduce of 1 KiB, negotiation included: at 2 ranks, and at 8 and 16 ranks on however
few cores there are. Through `hvd`, and as a backend of torch.distributed below its Python front;
beside them the core's calls alone, from C++, and the call of a process group that does nothing.
"""

from __future__ import annotations

from benchmarks.gradient_sets import GradientSet
from benchmarks.gradients import HOOKS, GradientSlices
from benchmarks.group import groups
from benchmarks.machine import cores
from benchmarks.records import Records
from benchmarks.slices import Contender, Effort, Rotation, Sample, Slices, compete

SIZE = 1 << 10
PEERS = ("gloo", "openmpi", "mpich")
OWN = "hvd.allreduce"
IN_PLACE = "hvd.allreduce_"
C10D, EMPTY = "c10d allreduce", "empty c10d allreduce"
_OVER_OPENMPI = {8: 1.2, 16: 1.5}
"""At most so many times its time, by ranks."""


def run(records: Records, quick: bool) -> None:
    """Measures and compares with the targets."""
    for ranks in (2, 8) if quick else (2, 8, 16):
        report_failure = records.reporter_of_failures(ranks)
        # A tensor like any other of a script, under the default settings.
        with groups(["horoacc", *PEERS], ranks, report_failure, HOROACC_ARENA="gradients") as up:
            found = []
            if "horoacc" in up:
                own = up["horoacc"]
                found = [
                    Contender(OWN, own, "torch", "blocking"),
                    Contender("hvd.allreduce, named", own, "torch", "named"),
                    Contender(IN_PLACE, own, "torch", "in place"),
                    Contender(C10D, own, "torch", "c10d"),
                    Contender(EMPTY, own, "torch", "empty"),
                ]
            found += [Contender(peer, up[peer]) for peer in PEERS if peer in up]
            entries = [Slices(one, Rotation, SIZE, one.memory, one.how) for one in found]
            if "horoacc" in up:
                core = Contender("the core's calls", up["horoacc"], "torch", HOOKS)
                entries.append(GradientSlices(core, GradientSet("1 KiB", [(SIZE // 4,)])))
                found.append(core)
            samples = compete(entries, Effort.of(quick, ranks), report_failure)
            for one in found:
                if one.name == EMPTY and one.name in samples:
                    each = round(1e6 * samples[EMPTY].median, 2)
                    records.figure(f"{EMPTY}, {ranks} ranks", each, "us", one.group)
                elif one.name in samples:
                    records.allreduce(one, SIZE, samples[one.name], call=one.how)
        _compare(records, ranks, samples)


def _compare(records: Records, ranks: int, samples: dict[str, Sample]) -> None:
    if not {OWN, IN_PLACE} <= samples.keys():
        return
    own = 1e6 * samples[OWN].median
    if ranks == 2:
        records.target("blocking hvd.allreduce of 1 KiB at 2 ranks", own, 30, "us", True)
        what = "blocking hvd.allreduce_ of 1 KiB at 2 ranks"
        records.target(what, 1e6 * samples[IN_PLACE].median, 6, "us", True)
        if C10D in samples:
            group = 1e6 * samples[C10D].median
            records.target("blocking c10d allreduce of 1 KiB at 2 ranks", group, 20, "us", True)
            if EMPTY in samples:
                more = group - 1e6 * samples[EMPTY].median
                what = "blocking c10d allreduce of 1 KiB, over the empty call of a group"
                records.target(what, more, 1.7, "us", True)
        return
    where = f"1 KiB at {ranks} ranks on {cores()} cores"
    if "openmpi" in samples:
        # Which reduces in place.
        for what, name in (("in place", IN_PLACE), ("with a new result", OWN)):
            over = samples[name].median / samples["openmpi"].median
            most = _OVER_OPENMPI[ranks]
            records.target(f"{where}, {what}, over Open MPI's time", over, most, "x", True)
    if "gloo" in samples:
        peer = 1e6 * samples["gloo"].median
        records.target(f"{where}, two orders below Gloo's", own, peer / 100, "us", True)
