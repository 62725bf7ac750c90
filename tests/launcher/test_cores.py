"""How many threads a rank gets: by affinity, by quotas, and by the slots of its host."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from horoacc.launcher import cores
from horoacc.launcher.elastic import agent


@pytest.mark.parametrize(
    ("groups", "files", "usable"),
    [
        ("0::/", {}, 8),
        ("0::/", {"cpu.max": "max 100000"}, 8),
        ("0::/a/b", {"a/cpu.max": "250000 100000", "a/b/cpu.max": "max 100000"}, 2),
        ("0::/a", {"a/cpu.max": "20000 100000"}, 1),
        ("0::/", {"cpu.max": "1600000 100000"}, 8),
        ("3:cpu,cpuacct:/x\n1:memory:/x",
         {"cpu,cpuacct/x/cpu.cfs_quota_us": "400000", "cpu,cpuacct/x/cpu.cfs_period_us": "100000"},
         4),
        ("3:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
    ],
)  # fmt: skip
def test_cores_that_a_quota_leaves(
    groups: str, files: Mapping[str, str], usable: int, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "own").write_text(groups + "\n")
    monkeypatch.setattr(cores, "_GROUPS", tmp_path)
    monkeypatch.setattr(cores, "_OWN", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert cores.usable() == usable


@pytest.mark.parametrize(("given", "threads"), [({}, "3"), ({"OMP_NUM_THREADS": "5"}, "5")])
def test_workers_share_the_cores_of_their_host(
    given: dict[str, str], threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "usable", lambda: 12)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for name, text in given.items():
        monkeypatch.setenv(name, text)
    assert agent.worker_environ(7, "h", 4)["OMP_NUM_THREADS"] == threads
