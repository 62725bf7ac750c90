"""What seals between hosts cost: pairs of the same job with and without them, in turns."""

from __future__ import annotations

import statistics
import subprocess

from benchmarks.lab import Laboratory, Network, missing
from benchmarks.lab_jobs import MIB, measure, order
from benchmarks.records import Records

HOSTS = "h1:1,h2:1"
NONE = {"HOROACC_LINK_MAC": "none"}
SEALS = {
    "AES-256-GCM, tags only": {},
    "AES-256-GCM, encrypted": {"HOROACC_ENCRYPT": "1"},
    "HMAC-SHA256": {"HOROACC_LINK_MAC": "hmac-sha256"},
}
RATE = 1e9
LARGE, LARGE_LIMIT = 64 * MIB, 1.05
SMALL, SMALL_LIMIT = 1 << 10, 3e-6
BATCH, SLICES = 100, 15
ROUNDS = 9


def run(records: Records, quick: bool) -> None:
    """Measures both, or writes why that is not possible here."""
    if reason := missing():
        records.write({"skipped": reason})
        print(f"skipped: {reason}")
        return
    rounds = 1 if quick else ROUNDS
    try:
        _large(records, MIB if quick else LARGE, rounds)
        _small(records, rounds)
    except subprocess.SubprocessError as error:
        records.report_failure("horoacc", 2, str(error))


def _pairs(
    network: Network, work: dict[str, object], rounds: int, which: str
) -> dict[str, list[list[float]]]:
    """Of each seal, and each round: the times without it and with it."""
    entries = [(NONE, [work])] + [(seal, [work]) for seal in SEALS.values()]
    told = []
    with Laboratory(network) as lab:
        for _ in range(rounds):
            told += [one[which] for one in measure(lab, HOSTS, entries)]
    return {
        name: [[told[k], told[k + number]] for k in range(0, len(told), len(entries))]
        for number, name in enumerate(SEALS, start=1)
    }


def _large(records: Records, size: int, rounds: int) -> None:
    work = order("allreduce", size, 3)
    for name, times in _pairs(Network(rate=RATE), work, rounds, "time").items():
        what = f"allreduce of {size // MIB} MiB at {RATE / 1e9:g} Gbit/s, {name}"
        ratios = [sealed / plain for plain, sealed in times]
        plain, sealed = (statistics.median(each) for each in zip(*times, strict=True))
        records.write({"figure": what, "value": sealed, "plain": plain, "unit": "s"})
        print(f"  {what}: {sealed * 1e3:.1f} ms, {plain * 1e3:.1f} without", flush=True)
        _target(records, f"{what}, against none", ratios, LARGE_LIMIT, "x")


def _small(records: Records, rounds: int) -> None:
    # The quickest slice of a job: some microseconds are less than what else a machine does.
    work = order("allreduce", SMALL, SLICES, batch=BATCH)
    for name, times in _pairs(Network(), work, rounds, "min").items():
        what = f"allreduce of {SMALL} bytes, {name}"
        more = [(sealed - plain) * 1e6 for plain, sealed in times]
        plain, sealed = (statistics.median(each) for each in zip(*times, strict=True))
        records.write({"figure": what, "value": sealed, "plain": plain, "unit": "s"})
        print(f"  {what}: {sealed * 1e6:.1f} us, {plain * 1e6:.1f} without", flush=True)
        _target(records, f"{what}: more than without", more, SMALL_LIMIT * 1e6, "us")


def _target(records: Records, what: str, values: list[float], limit: float, unit: str) -> None:
    quartiles = None
    if len(values) > 1:
        low, _, high = statistics.quantiles(values, n=4)
        quartiles = (low, high)
    records.target(what, statistics.median(values), limit, unit, True, quartiles)
    print(f"  {what}: {statistics.median(values):.3f} {unit} {quartiles or ''}", flush=True)
