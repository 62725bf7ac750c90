"""The timeline of a whole job, asked for by a flag or by a variable."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from launcher_jobs import MODES, Job

PROGRAM = """
import numpy as np
import horoacc as hvd
hvd.init()
for step in range(4):
    hvd.allreduce(np.ones(100_000), name="gradient")
    hvd.allgather(np.ones((hvd.rank() + 1, 2)), name="rows")
hvd.barrier()
"""


def lanes(path: Path) -> dict[str, list[dict[str, Any]]]:
    """The events of each lane by its title."""
    found = json.loads(path.read_text())
    events = found if isinstance(found, list) else found["traceEvents"]
    titles = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    return {title: [e for e in events if e.get("tid") == tid and e["ph"] != "M"]
            for tid, title in titles.items()}  # fmt: skip


@pytest.mark.parametrize("asked", ["flag", "variable", "Horovod's variable"])
def test_every_tensor_has_a_lane_with_its_phases(job: Job, tmp_path: Path, asked: str) -> None:
    path = tmp_path / "trace.json"
    flags, variables = MODES["tcp"], {}
    if asked == "flag":
        flags = [*flags, "--timeline-filename", str(path), "--timeline-mark-cycles"]
    elif asked == "variable":
        flags, variables = MODES["openmpi"], {"HOROACC_TIMELINE": str(path)}
    else:
        variables = {"HOROVOD_TIMELINE": str(path), "HOROACC_SIMULATED_HOSTS": "each"}
    job.run(*flags, "-np", "2", sys.executable, "-c", PROGRAM, **variables)
    found = lanes(path)
    for lane, outer in (("allreduce.gradient", "allreduce"), ("allgather.rows", "allgather")):
        begun = [event["name"] for event in found[lane] if event["ph"] in ("B", "X")]
        assert begun.count(outer) == 4, begun
        # Horovod's names, for tools that look for them.
        assert begun.count(f"NEGOTIATE_{outer.upper()}") == 4, begun
        # Spans too short to draw are left out.
        own = {outer, f"NEGOTIATE_{outer.upper()}", "QUEUE", outer.upper(), "RESULT"}
        assert set(begun) <= own
    ways = [event["args"]["path"] for event in found["allreduce.gradient"]
            if event["name"] == "ALLREDUCE" and "path" in event.get("args", {})]  # fmt: skip
    between = "HOROACC_SIMULATED_HOSTS" in variables
    assert ways and set(ways) == {"canonical" if between else "flat_windows"}
    assert ("decisions" in found) == (asked == "flag")
