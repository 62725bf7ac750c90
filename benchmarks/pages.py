"""Writes a run's figures into README.md and docs/benchmarks.md, between the marks there."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_PEERS = ("gloo", "openmpi", "mpich")
_MIB = 1 << 20
_VERDICTS = {True: "yes", False: "**no**", None: "the run does not tell"}
NETWORKS = ("hosts", "streams", "rails", "algorithms", "stages")
"""Benchmarks in the network laboratory, whose figures docs/networks.md shows."""

Record = dict[str, Any]
Row = list[str]


def fill(records: list[Record]) -> list[str]:
    """Replaces the tables of the last run.

    Args:
        records: Those of the last run of each benchmark.

    Returns:
        What stays as it is because a benchmark that it shows was not run. Of the targets and of
        the figures of networks, the rows of such benchmarks stay.
    """
    run = {record["benchmark"] for record in records}
    readme, page = ROOT / "README.md", ROOT / "docs" / "benchmarks.md"
    networks = ROOT / "docs" / "networks.md"
    tables = (
        (readme, "figures", _figures, {"latency", "allreduce", "gradients"}),
        (page, "machine", _machine, {"machine", "allreduce"}),
        (page, "training", _training, {"training"}),
        (page, "ddp", _ddp, {"ddp"}),
        (page, "tensorflow", _tensorflow, {"tensorflow"}),
        (page, "frameworks", _frameworks, {"tensorflow", "keras"}),
        (readme, "frameworks", _frameworks, {"tensorflow", "keras"}),
        (networks, "hosts", _hosts, {"hosts"}),
    )
    stay = []
    for where, mark, rows, needed in tables:
        if needed <= run:
            _replace(where, mark, rows(records))
        else:
            stay.append(f"{where.name}: {mark}")
    by_rows = (
        (page, "targets", _targets(one for one in records if not _of_networks(one))),
        (networks, "targets", _targets(filter(_of_networks, records))),
        (networks, "measured", _network_figures(records)),
    )
    for where, mark, new in by_rows:
        kept = [row for row in _rows(where, mark)[1:] if row[0] not in run]
        stay += sorted({f"{where.name}: {mark} of {row[0]}" for row in kept})
        _replace(where, mark, [new[0], *kept, *new[1:]])
    return stay


def _of_networks(record: Record) -> bool:
    return record["benchmark"] in NETWORKS


def _hosts(records: list[Record]) -> list[Row]:
    rows = [["system", "bytes", "time", "share of the link"]]
    for one in records:
        if one["benchmark"] == "hosts" and "share_of_link" in one:
            rows.append([one["system"], str(one["size"]), _time(one["time"] * 1e6),
                         f"{one['share_of_link']:.1%}"])  # fmt: skip
    return rows


def _network_figures(records: list[Record]) -> list[Row]:
    """All that was measured besides: what it is, and the numbers by name."""
    rows = [["benchmark", "what", "figures"]]
    for one in records:
        if not _of_networks(one) or "figure" not in one:
            continue
        if one.get("unit") == "bit/s":
            shown = f"{one['value'] / 1e6:.4g} Mbit/s"
        else:
            numbers = {k: v for k, v in one.items() if isinstance(v, (int, float))}
            shown = ", ".join(f"{k.replace('_', ' ')} {v:.4g}" for k, v in numbers.items())
        rows.append([one["benchmark"], one["figure"], shown])
    return rows


def _rows(page: Path, mark: str) -> list[Row]:
    """A table as it is, without the line below its header."""
    text = page.read_text().partition(f"<!-- {mark}:begin -->\n")[2]
    header, _, *lines = text.partition(f"<!-- {mark}:end -->")[0].splitlines()
    return [[cell.strip() for cell in line[1:-1].split(" | ")] for line in (header, *lines)]


def _replace(page: Path, mark: str, rows: Iterable[Row]) -> None:
    begin, end = f"<!-- {mark}:begin -->", f"<!-- {mark}:end -->"
    text = page.read_text()
    head, _, rest = text.partition(begin)
    _, found, tail = rest.partition(end)
    if not found:
        raise ValueError(f"{page} has no marks for '{mark}'")
    first, *others = rows
    lines = [_line(first), "|" + "---|" * len(first), *map(_line, others)]
    page.write_text("\n".join([head + begin, *lines, end + tail]))


def _line(row: Row) -> str:
    return "| " + " | ".join(row) + " |"


def _figures(records: list[Record]) -> list[Row]:
    def row(what: str, benchmark: str, own: str, mine: str, **wanted: Any) -> Row:
        """`own` and `mine`: our contender's name, and what the peers' names end with."""
        fits = [
            one for one in records
            if one["benchmark"] == benchmark and "time" in one
            and all(one.get(key) == value for key, value in wanted.items())
        ]  # fmt: skip
        times = {one["system"]: one["time"] for one in fits}
        return [what, *(_time(times.get(name)) for name in (own, *(p + mine for p in _PEERS)))]

    rows = [["what", "HoroACC", "Gloo", "Open MPI", "MPICH"]]
    for ranks in (2, 8, 16):
        rows.append(
            row(f"blocking allreduce of 1 KiB, {ranks} ranks", "latency", "hvd.allreduce", "",
                ranks=ranks)
        )  # fmt: skip
    for ranks, size in ((2, 1), (2, 16), (2, 128), (4, 64), (8, 16)):
        for memory in ("arena", "private"):
            rows.append(
                row(f"allreduce of {size} MiB, {ranks} ranks, {memory}", "allreduce",
                    f"horoacc {memory}", "", ranks=ranks, size=size * _MIB)
            )  # fmt: skip
    for name in ("ResNet-50", "GPT-2 small"):
        rows.append(
            row(f"gradients of {name}, 2 ranks", "gradients", "horoacc as hooks submit",
                " one allreduce", set=name)
        )  # fmt: skip
    return rows


def _time(microseconds: float | None) -> str:
    if microseconds is None:
        return "-"
    return f"{microseconds / 1e3:.3g} ms" if microseconds >= 1e3 else f"{microseconds:.3g} µs"


def _machine(records: list[Record]) -> list[Row]:
    machine = next(one for one in records if one["benchmark"] == "machine")
    versions = {one["system"]: one for one in records if one.get("system") in _PEERS}
    facts = {key: str(value) for key, value in machine.items() if key != "benchmark"}
    facts["kernel"] = facts["kernel"].partition("-")[0]
    for name, one in versions.items():
        if "version" in one:
            facts[name] = f"{one['version']}, {one['transport']}"
    return [["what", "value"], *([key.replace("_", " "), value] for key, value in facts.items())]


def _targets(records: Iterable[Record]) -> list[Row]:
    rows = [["benchmark", "what", "measured", "target", "met", ""]]
    for one in records:
        if "target" in one:
            sense = "≤" if one["sense"] == "at most" else "≥"
            measured, limit = (
                f"{one[key]:.3g} {one['unit']}".strip() for key in ("measured", "limit")
            )
            notes = [one["note"]] if "note" in one else []
            if "lockstep" in one:
                notes.append(f"lockstep alone: {one['lockstep']} %")
            for name in {"quartiles", "interval"} & one.keys():
                notes.append("{} {:.3g} to {:.3g}".format(name, *one[name]))
            rows.append(
                [one["benchmark"], one["target"], measured, f"{sense} {limit}",
                 _VERDICTS[one["met"]], "; ".join(notes)]
            )  # fmt: skip
    return rows


def _training(records: list[Record]) -> list[Row]:
    rows = [["network", "step alone", "step together", "before init", "efficiency", "quartiles"]]
    for one in records:
        if one["benchmark"] == "training" and "step_us" in one:
            times = (*one["step_us"].values(), one["step_before_init_us"])
            rows.append(
                [one["figure"].partition(":")[0], *map(_time, times), f"{one['value']} %",
                 " to ".join(f"{one['quartiles'][k]}" for k in (0, 2))]
            )  # fmt: skip
    return rows


def _ddp(records: list[Record]) -> list[Row]:
    systems = ("gloo alone", "gloo DDP", "horoacc DDP", "horoacc DistributedOptimizer")
    steps: dict[str, dict[str, str]] = {}
    for one in records:
        network, found, system = one.get("figure", "").partition(": step, ")
        if one["benchmark"] == "ddp" and found:
            steps.setdefault(network, {})[system] = f"{one['value']:.3g} {one['unit']}"
    header = ["network", "alone", "DDP over Gloo", "DDP over HoroACC", "`hvd.DistributedOptimizer`"]
    return [header, *([name, *(of.get(one, "-") for one in systems)] for name, of in steps.items())]


def _frameworks(records: list[Record]) -> list[Row]:
    rows = [["what", "one rank", "alone", "together", "scaling", "communication share"]]
    for one in records:
        if "scaling" in one:
            times = (_time(one["step_us"][name]) for name in ("one", "alone", "together"))
            share = f"{one['communication_share']} %"
            rows.append([one["network"], *times, f"{one['scaling']} %", share])
    return rows


def _tensorflow(records: list[Record]) -> list[Row]:
    own = ("tensorflow eager", "tensorflow graph", "tensorflow eager, HOROACC_ARENA=off")
    systems = (*own, "horoacc arena", "horoacc private", *_PEERS, "memory bound")
    times: dict[int, dict[str, float]] = {}
    for one in records:
        if one["benchmark"] == "tensorflow" and "time" in one:
            times.setdefault(one["size"], {})[one["system"]] = one["time"]
    header = ["size", "eager", "`tf.function`", "eager, no arena", "torch", "NumPy", "Gloo",
              "Open MPI", "MPICH", "bound"]  # fmt: skip
    return [header, *(
        [f"{size // _MIB} MiB", *(_time(of.get(system)) for system in systems)]
        for size, of in sorted(times.items())
    )]  # fmt: skip
