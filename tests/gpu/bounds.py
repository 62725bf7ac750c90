"""Judges the figures of a run: python bounds.py FOLDER. A line for each bound: MET, NOT MET, or
NOT MEASURED. And all of a run as one table for docs/gpu.md: python bounds.py FOLDER --table.

Figures are the lines of JSON in the folder's *.txt, whoever wrote them and whatever stands before.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

Row = dict[str, Any]
# Mode K launches these (csrc/execute/cuda/persistent/kernel_programs.h).
CHOSEN = {8 << 10: "one_shot", 1 << 20: "direct", 256 << 20: "direct"}
MODES = ("cpu_reduce", "leader", "stream")


class Bound(NamedTuple):
    """A promise, and the measured figures."""

    name: str
    figures: list[float]
    holds: Callable[[float], bool]
    wanted: str
    worst: Callable[[Iterable[float]], float] = min

    @property
    def mark(self) -> str:
        """How it stands."""
        if not self.figures:
            return "NOT MEASURED"
        return "MET" if self.holds(self.worst(self.figures)) else "NOT MET"

    @property
    def measured(self) -> str:
        """The worst figure."""
        if not self.figures:
            return ""
        return f"{self.worst(self.figures):.3g} of {len(self.figures)} figures"

    def verdict(self) -> str:
        """Says how it stands, with the worst figure."""
        said = f"{self.mark:12}  {self.name}: {self.wanted}"
        return f"{said}; {self.measured}" if self.figures else said


def figures(texts: Iterable[str]) -> list[Row]:
    """Finds the figures.

    Args:
        texts: What was said.

    Returns:
        The rows, in order; those without a `what` are none.
    """
    found = []
    for text in texts:
        for line in text.splitlines():
            try:
                row = json.loads(line[line.index("{") :])
            except ValueError:
                continue
            if isinstance(row, dict) and "what" in row:
                found.append(row)
    return found


def against_nccl(rows: list[Row], size: int) -> list[float]:
    """How many times as long as virtual ranks NCCL's take, for each number of ranks."""
    times = {(row["what"].split()[0], row["ranks"]): row["us"]
             for row in rows if row.get("bytes") == size}  # fmt: skip
    return [times["NCCL", ranks] / us for (what, ranks), us in times.items()
            if what == CHOSEN[size] and ("NCCL", ranks) in times]  # fmt: skip


def bounds(rows: list[Row]) -> list[Bound]:
    """Lists the promises.

    Args:
        rows: All figures.

    Returns:
        The bounds, in the order of the promises.
    """

    def of(what: str, column: str, **wanted: object) -> list[float]:
        return [float(row[column]) for row in rows if row["what"] == what and column in row
                and all(row.get(name) == value for name, value in wanted.items())]  # fmt: skip

    share, most = "at least 85 % of the copy bandwidth, 64 MiB or more", "at least 80 %"
    found = [
        Bound("pack", of("pack", "of copy", to="float32"), lambda x: x >= 0.85, share),
        Bound("pack to bfloat16", of("pack", "of copy", to="bfloat16"), lambda x: x >= 0.85, share),
        Bound("reduce", of("reduce", "of copy"), lambda x: x >= 0.85, share),
        Bound("launches of 2000 tensors", of("launches", "kernels", tensors=2000),
              lambda x: x == 1, "one", max),
        Bound("mode L's kernel, N to N", of("reduce to all", "of copy"), lambda x: x >= 0.8,
              f"{most} of 2 N S at the copy bandwidth"),
    ]  # fmt: skip
    for mps, how in ((False, ""), (True, ", with MPS")):
        found.append(Bound(f"mode L's calls of 4 ranks{how}",
                           of("bound", "of 6NS", mode="leader", ranks=4, mps=mps),
                           lambda x: x >= 0.8,
                           f"{most} of what they move with packing (2 N S and 4 N S)"))  # fmt: skip
        found.append(Bound(f"a call of 4 ranks on one GPU{how}",
                           of("against gloo", "ratio", ranks=4, mps=mps), lambda x: x > 1,
                           "quicker than over gloo"))  # fmt: skip
    for size, kind in CHOSEN.items():
        found.append(Bound(f"mode K's virtual ranks ({kind}) at {size >> 10} KiB",
                           against_nccl(rows, size), lambda x: x > 1,
                           "quicker than NCCL's ranks on this GPU"))  # fmt: skip
    ways = [float(row["of both ways"]) for row in rows
            if (row["what"], row.get("mode")) == ("allreduce", "cpu_reduce")
            and row["MiB"] >= 64]  # fmt: skip
    found.append(Bound("CPU-Reduce", ways, lambda x: x >= 0.8,
                       f"{most} of the bus used both ways at once, 64 MiB or more"))  # fmt: skip
    for mode in MODES:
        found.append(Bound(f"a killed rank in mode {mode}", of("released", "s", mode=mode),
                           lambda x: x < 5, "the others are released within 5 s", max))  # fmt: skip
    for model in ("ResNet-50", "GPT-2 small"):
        steps = [row for row in rows if row["what"] == "step" and row["model"] == model]
        found.append(Bound(f"a step of {model} with DDP, 4 ranks on one GPU",
                           [row["ms gloo"] / row["ms"] for row in steps], lambda x: x > 1,
                           "quicker than over gloo"))  # fmt: skip
    return found


def table(text: str, verdicts: str, found: list[Bound]) -> list[str]:
    """Puts a run into Markdown.

    Args:
        text: What the run's parts said.
        verdicts: A line for each part: how it ended, its name, and its time or a reason.
        found: The bounds.

    Returns:
        The lines.
    """
    rows = []
    for line in verdicts.splitlines():
        if match := re.match(r"(PASS|FAIL\(\d+\)|NOT CHECKED) (.*?)(?:[,:] (.*))?$", line):
            rows.append((match[2], "", match[3] or "", match[1]))
    for line in text.splitlines():
        if match := re.match(r"(yes|NO) {2,3}(.*)", line):
            rows.append((match[2], "CUDA does so", "", match[1]))
    rows += [(row["what"], "", f"{row['us']} µs, the host {row['host us']} µs", "")
             for row in figures([text]) if "host us" in row]  # fmt: skip
    rows += [(bound.name, bound.wanted, bound.measured, bound.mark) for bound in found]
    head = ["| part, or bound | wanted | measured | how it stands |", "|---|---|---|---|"]
    return head + [f"| {' | '.join(row)} |" for row in rows]


def main() -> int:
    """Prints the verdicts, or the table; 1 if a bound is not met."""
    folder = Path(sys.argv[1])
    texts = [path.read_text(errors="replace") for path in sorted(folder.glob("*.txt"))]
    found = bounds(figures(texts))
    if "--table" in sys.argv:
        verdicts = folder / "verdicts.txt"
        said = verdicts.read_text() if verdicts.exists() else ""
        print("\n".join(table("\n".join(texts), said, found)))
    else:
        print("\n".join(bound.verdict() for bound in found))
    return int(any(bound.mark == "NOT MET" for bound in found))


if __name__ == "__main__":
    sys.exit(main())
