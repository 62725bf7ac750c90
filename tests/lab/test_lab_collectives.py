"""Collectives between hosts: right however ranks start and meet, and counted in bytes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from lab_jobs import MODES, horoaccrun

from benchmarks.lab import Laboratory, Network

Build = Callable[[Network], Laboratory]
MIB = 1 << 20

WORK = """
import numpy as np
import horoacc as hvd
hvd.init()
me, size = hvd.rank(), hvd.size()
whole = [np.arange(100_003) % 89 * (rank + 1) for rank in range(size)]
for turn in range(3):
    handles = [hvd.allreduce_async(whole[me] + k, name=f"t{k}", op=hvd.Sum) for k in range(8)]
    for k, handle in enumerate(handles):
        assert (hvd.synchronize(handle) == np.sum(whole, axis=0) + k * size).all()
for kind in "bool uint8 int8 int16 int32 int64 float16 float32 float64 complex64".split():
    parts = [((np.arange(1003) + r) % 2 + (kind != "bool")).astype(kind) for r in range(size)]
    for op, join in (hvd.Sum, np.sum), (hvd.Product, np.prod), (hvd.Min, np.min), (hvd.Max, np.max):
        if kind == "complex64" and op in (hvd.Min, hvd.Max):
            continue
        got = hvd.allreduce(parts[me], name=f"{kind}{op}", op=op)
        assert got.dtype == kind and (got == join(parts, axis=0).astype(kind)).all(), (kind, op)
rows = hvd.allgather(np.full((me + 1, 3), me, np.float32))
assert rows[:, 0].tolist() == [r for r in range(size) for _ in range(r + 1)]
assert hvd.broadcast(np.full(5, me), size - 1).tolist() == [size - 1] * 5
got, splits = hvd.alltoall(np.full(size * (size + 1) // 2, me), list(range(1, size + 1)))
assert got.tolist() == [r for r in range(size) for _ in range(me + 1)] and set(splits) == {me + 1}
shard = hvd.reducescatter(np.ones((size + 1, 2)), op=hvd.Sum)
assert (shard == size).all() and len(shard) == (2 if me == 0 else 1)
some = hvd.add_process_set(list(range(1, size)))
if me > 0:
    assert hvd.allreduce(np.ones(1), op=hvd.Sum, process_set=some)[0] == size - 1
assert hvd.join() >= 0
hvd.barrier()
print("right\\n", end="")
hvd.shutdown()
"""

DIFFER = """
import numpy as np
import horoacc as hvd
hvd.init()
try:
    hvd.allreduce(np.ones(3 if hvd.rank() == 3 else 2), name="odd")
except hvd.errors.Mismatch as error:
    print(f"{error}\\n", end="")
assert hvd.allreduce(np.ones(1), op=hvd.Sum)[0] == hvd.size()
"""

DIE = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # until the rank has printed its error
import numpy as np
import horoacc as hvd
hvd.init()
try:
    # Rank 3 may have this result, and die, before the others have it.
    hvd.allreduce(np.ones(1), name="first")
    if hvd.rank() == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    hvd.allreduce(np.ones(1 << 20), name="second")
except hvd.errors.PeerLost as error:
    print(f"lost {error.culprit}\\n", end="", flush=True)
"""

DEEP_NET = """
import time, torch
import horoacc.torch as hvd
hvd.init()
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(100)))
sgd = torch.optim.SGD(model.parameters(), 1e-3)
optimizer = hvd.DistributedOptimizer(sgd, named_parameters=model.named_parameters())
for step in range(50):
    if step == 10:
        before, began = hvd.counters()["control_messages"], time.monotonic()
    optimizer.zero_grad()
    model(torch.ones(4, 64)).sum().backward()
    optimizer.step()
counted = hvd.counters()
assert counted["plan_rounds"] > 40 and counted["plan_granted"] > 0, counted
assert counted["plan_dropped"] == 0, counted
print(f"{counted['control_messages'] - before} {time.monotonic() - began}\\n", end="")
hvd.shutdown()
"""

REDUCE = """
import sys, numpy as np
import horoacc as hvd
hvd.init()
call = getattr(hvd, sys.argv[2])
got = call(np.full(int(sys.argv[1]) // 4, hvd.rank() + 1, np.float32), op=hvd.Sum)
assert (got == hvd.size() * (hvd.size() + 1) / 2).all()
hvd.shutdown()
"""

RAILS = """
import numpy as np
import horoacc as hvd
hvd.init()
me, size = hvd.rank(), hvd.size()
kept = hvd.counters()
rows = np.arange(size * 3.0).reshape(size, 3) + 100 * me
for turn in range(20):
    got = hvd.alltoall(rows, name="x")
    assert (got == np.arange(3) + 3 * me + 100 * np.arange(size)[:, None]).all()
told = hvd.counters()
opened, sent = (told[k] - kept[k] for k in ("data_connections", "data_send_calls"))
print(f"opened {opened}, sent {sent >= 20 * opened}\\n", end="")
hvd.shutdown()
"""


@pytest.fixture(params=list(MODES))
def mode(request: pytest.FixtureRequest) -> list[str]:
    """The flags that choose the launcher and the rendezvous."""
    flags = MODES[request.param]
    if not Path(flags[-1]).exists():
        pytest.skip(f"{request.param}: this mpirun is not installed")
    return flags


def test_collectives_between_hosts(build: Build, mode: list[str]) -> None:
    lab = build(Network())
    lines, _ = horoaccrun(lab, *mode, "-np", "4", "-H", "h1:2,h2:2", sys.executable, "-c", WORK)
    assert lines == {rank: ["right"] for rank in range(4)}


def works(lab: Laboratory, hosts: str, *flags: str) -> None:
    ranks = sum(int(part[-1]) for part in hosts.split(","))
    run = [*flags, "-np", str(ranks), "-H", hosts, sys.executable, "-c", WORK]
    assert horoaccrun(lab, *run)[0] == {rank: ["right"] for rank in range(ranks)}


OTHER_SHAPES = ["h1:1,h2:1", "h1:2,h2:1", "h1:1,h2:1,h3:1,h4:1", "h1:2,h2:2,h3:2"]


@pytest.mark.parametrize("hosts", OTHER_SHAPES)
def test_other_shapes(build: Build, hosts: str) -> None:
    works(build(Network(hosts=4)), hosts, *MODES["tcp over openmpi"])


@pytest.mark.parametrize("hosts", ["h1:2,h2:2", *OTHER_SHAPES])
def test_mpi_carries_control_and_data(build: Build, hosts: str) -> None:
    works(build(Network(hosts=4)), hosts, *MODES["openmpi"], "--control", "mpi")


def test_a_disagreement_is_told_on_every_host(build: Build) -> None:
    lab = build(Network())
    run = [*MODES["tcp over openmpi"], "-np", "4", "-H", "h1:2,h2:2", sys.executable, "-c", DIFFER]
    lines, _ = horoaccrun(lab, *run)
    assert set(lines) == set(range(4))
    for (text,) in lines.values():
        assert "odd" in text and "rank 0" in text and "rank 3" in text, text


def test_a_death_on_another_host_is_told(build: Build) -> None:
    lab = build(Network())
    run = [*MODES["tcp over openmpi"], "-np", "4", "-H", "h1:2,h2:2", sys.executable, "-c", DIE]
    lines, _ = horoaccrun(lab, *run, code=None, grace=20)
    assert lines[0] == ["lost 3"]
    assert lines[1] == ["lost 3"]


@pytest.mark.parametrize(
    ("algorithm", "call", "times"),
    [
        ("hierarchical", "allreduce", 1.0),
        ("canonical", "allreduce", 1.0),
        ("ring", "allreduce", 1.5),
        ("canonical_reduce_scatter", "reducescatter", 0.5),
    ],
)
def test_bytes_on_the_link_of_a_host(build: Build, algorithm: str, call: str, times: float) -> None:
    """The bytes that the algorithm sends, and 2 % for headers and control messages."""
    lab = build(Network())
    size = 32 * MIB
    before = {name: count.sent_bytes for name, count in lab.traffic().items()}
    run = [*MODES["tcp over openmpi"], "--algorithm", algorithm, "-np", "4", "-H", "h1:2,h2:2"]
    horoaccrun(lab, *run, sys.executable, "-c", REDUCE, str(size), call)
    for name in ("h1.eth0", "h2.eth0"):
        sent = lab.traffic()[name].sent_bytes - before[name]
        assert times * size <= sent <= 1.02 * times * size, (name, sent / size)


@pytest.mark.parametrize(
    ("algorithm", "connections"), [("direct_all_to_all", 2), ("rail_all_to_all", 1)]
)
def test_rails_have_one_connection_each(build: Build, algorithm: str, connections: int) -> None:
    """Between two hosts of two ranks: two instead of four."""
    lab = build(Network(rails=2, spine_rate=1e9))
    run = [*MODES["tcp over openmpi"], "--algorithm", algorithm, "-np", "4", "-H", "h1:2,h2:2"]
    run += ["--network-interfaces", "eth0,eth1"]
    lines, _ = horoaccrun(lab, *run, sys.executable, "-c", RAILS)
    assert lines == {rank: [f"opened {connections}, sent True"] for rank in range(4)}


@pytest.mark.parametrize("hosts", ["h1:1,h2:1", "h1:2,h2:2"])
def test_a_locked_step_of_a_deep_net_sends_no_message(build: Build, hosts: str) -> None:
    """But for a sign of life a second."""
    size = 2 if hosts == "h1:1,h2:1" else 4
    flags = (*MODES["tcp over openmpi"], "-H", hosts, "-np", str(size))
    lines, _ = horoaccrun(build(Network()), *flags, sys.executable, "-c", DEEP_NET)
    assert len(lines) == size
    for said in lines.values():
        messages, seconds = map(float, said[-1].split())
        assert messages <= 20 + 5 * seconds, lines
