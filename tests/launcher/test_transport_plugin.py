"""Jobs whose data between hosts a library carries: tests/cpp/transport/sample_transport.cc."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from launcher_jobs import ROOT, Job

PROGRAM = """
import sys
import numpy as np
import horoacc as hvd
try:
    hvd.init()
    me, size = hvd.rank(), hvd.size()
    for length in (1, 1003, 1 << 20):
        whole = [np.arange(length) % 97 * (rank + 1) for rank in range(size)]
        got = hvd.allreduce(whole[me], name=f"of {length}", op=hvd.Sum)
        assert (got == np.sum(whole, axis=0)).all()
    rows = hvd.allgather(np.full((me + 1, 30_000), me))
    assert rows[:, 0].tolist() == [r for r in range(size) for _ in range(r + 1)]
    hvd.shutdown()
    print("right", flush=True)
except (hvd.errors.ConfigError, hvd.HorovodInternalError) as error:
    print(f"{error.culprit}: {error}".replace("\\n", " "), flush=True)
    sys.exit(3)
"""
# A library for another version of the contract.
STALE = """
#include "transport/data/tagged/transport_plugin.h"
static const ha_transport_plugin table = {77, "stale", 1u << 20};
extern "C" const ha_transport_plugin* horoacc_transport_plugin_v1(void) { return &table; }
"""


def compiled(source: Path, folder: Path) -> str:
    library = folder / f"{source.stem}.so"
    compiler = os.environ.get("CXX", "g++")
    subprocess.run(
        [compiler, "-std=c++20", "-O1", "-shared", "-fPIC", "-I", ROOT / "csrc", source,
         "-o", library], check=True,
    )  # fmt: skip
    return str(library)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> str:
    return compiled(
        ROOT / "tests" / "cpp" / "transport" / "sample_transport.cc", tmp_path_factory.mktemp("lib")
    )


def flags(library: str, hosts: str) -> list[str]:
    ranks = len(hosts.split("+"))
    return ["--tcp", "--transport-plugin", library, "--simulated-hosts", hosts, "-np", str(ranks),
            sys.executable, "-c", PROGRAM]  # fmt: skip


@pytest.mark.parametrize("hosts", ["1+1", "1+1+1"])
def test_a_library_carries_a_job(sample: str, hosts: str) -> None:
    with Job() as job:
        result = job.run(*flags(sample, hosts), SAMPLE_TRANSPORT_TELLS="1")
        job.expect_nothing_left()
    for rank in range(len(hosts.split("+"))):
        assert result.of(rank) == ["right"]
        told = re.search(rf"rank {rank} sent (\d+) bytes", result.err)
        # Eight bytes an element: at least the large vector has left every host.
        assert told and int(told[1]) >= 8 << 20, result.err


@pytest.mark.parametrize("wrong", ["missing", "stale", "open", "send"])
def test_what_is_wrong_with_a_library_is_told(sample: str, wrong: str, tmp_path: Path) -> None:
    library = sample
    if wrong == "missing":
        library = str(tmp_path / "nowhere.so")
    if wrong == "stale":
        (tmp_path / "stale.cc").write_text(STALE)
        library = compiled(tmp_path / "stale.cc", tmp_path)
    why = {
        "missing": "cannot be loaded",
        "stale": "has version 77 of the contract, and this HoroACC version 1",
        "open": "cannot listen: No such device",
        "send": "cannot send: Network is down",
    }[wrong]
    with Job() as job:
        result = job.run(
            *flags(library, "1+1"), code=3, HOROACC_GRACE_SECONDS="20",
            SAMPLE_TRANSPORT_FAILS=f"{wrong}:1",
        )  # fmt: skip
        job.expect_nothing_left()
    told = [line for rank in range(2) for line in result.of(rank)]
    assert told, result
    for line in told:
        assert why in line, result
        assert wrong == "send" or library in line, result
        # A library that every rank lacks is rank 0's fault first.
        assert line.startswith("1: " if wrong == "open" else ("0: ", "1: ")), result
