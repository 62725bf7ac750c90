"""What a job is asked about, and process sets, as Horovod has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from paths import has_plugin

import horoacc
import horoacc.torch as hvd
from horoacc import cuda_plugin, errors
from horoacc.dropin.basics_object import BASICS

pytestmark = pytest.mark.ranks(1, 2, 3, 4, framework="horoacc.torch")


@pytest.mark.ranks(1, 2, 3, 4, 16, framework="horoacc.torch")
def test_init_shutdown_and_init_again(ranks: int) -> None:
    me = hvd.rank()
    hvd.barrier()
    hvd.shutdown()
    hvd.shutdown()
    assert not hvd.is_initialized()
    for question in (hvd.rank, hvd.size, hvd.local_rank, hvd.local_size, hvd.cross_rank,
                     hvd.cross_size, hvd.is_homogeneous):  # fmt: skip
        with pytest.raises(ValueError, match=r"has not been initialized; use hvd\.init\(\)"):
            question()
    # What takes part in a collective is told as by a job that has ended, for elastic scripts.
    one = torch.ones(1)
    for collective in (lambda: hvd.allreduce(one), lambda: hvd.allgather(one), hvd.barrier,
                       hvd.join):  # fmt: skip
        with pytest.raises(hvd.HorovodInternalError, match=r"use hvd\.init\(\)"):
            collective()
    last = hvd.ProcessSet([ranks - 1])
    hvd.init(process_sets=[last] if ranks > 1 else None)
    hvd.init()
    assert (hvd.rank(), hvd.size()) == (me, ranks)
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == ranks
    if ranks > 1:
        assert last.included() == (me == ranks - 1)
        with pytest.raises(ValueError, match="these ranks exists"):
            hvd.init(process_sets=[[ranks - 1]])
        assert hvd.remove_process_set(last)
    with pytest.raises(ValueError, match="dynamic"):
        hvd.init(process_sets="static")
    with pytest.raises(ValueError, match="list of ranks or an mpi4py communicator"):
        hvd.shutdown() or hvd.init(comm="world")  # type: ignore[func-returns-value]
    hvd.init(comm=list(range(ranks)), process_sets="dynamic")
    assert hvd.is_initialized()


@pytest.mark.ranks(1, 2, 3, 4, 16, framework="horoacc.torch")
def test_places(ranks: int) -> None:
    places = hvd.allgather_object((hvd.rank(), hvd.local_rank(), hvd.cross_rank()))
    assert places == [(rank, rank, 0) for rank in range(ranks)]
    assert (hvd.size(), hvd.local_size(), hvd.cross_size()) == (ranks, ranks, 1)
    assert hvd.is_homogeneous() is True
    assert horoacc.rank() == hvd.rank(), "both frontends are one job"


def test_questions_about_the_build() -> None:
    answers = {
        name: getattr(hvd, name)()
        for name in ("mpi_enabled", "mpi_built", "gloo_enabled", "gloo_built", "ddl_built",
                     "ccl_built", "cuda_built", "rocm_built")
    }  # fmt: skip
    assert all(isinstance(answer, bool) for answer in answers.values()), answers
    assert answers["mpi_built"] == any(has_plugin(flavour) for flavour in ("openmpi", "mpich"))
    assert answers["gloo_built"] and answers["gloo_enabled"], "which means: works without MPI"
    assert answers["cuda_built"] == cuda_plugin.LIBRARY.is_file()
    assert not answers["ddl_built"] and not answers["ccl_built"] and not answers["rocm_built"]
    assert not answers["mpi_enabled"], "these ranks meet over TCP"
    assert (hvd.nccl_built(), type(hvd.nccl_built())) == (0, int)
    with pytest.raises(ValueError, match="MPI"):
        hvd.mpi_threads_supported()


def test_timeline(tmp_path: Path) -> None:
    path = tmp_path / f"{hvd.rank()}.json"
    hvd.start_timeline(str(path), mark_cycles=True)
    hvd.allreduce(torch.ones(3), name="drawn")
    hvd.barrier()
    hvd.stop_timeline()
    # Rank 0 draws for all.
    assert path.exists() == (hvd.rank() == 0)
    if hvd.rank() == 0:
        assert "drawn" in json.dumps(json.loads(path.read_text()))
        with pytest.raises((OSError, RuntimeError, ValueError)):
            hvd.start_timeline(str(tmp_path / "nowhere" / "trace.json"))
    hvd.barrier()


def test_process_set(ranks: int) -> None:
    me = hvd.rank()
    members = hvd.ProcessSet(range(ranks - 1, -1, -2))
    assert members.ranks == sorted(range(ranks - 1, -1, -2))
    assert members.process_set_id is members.size() is members.rank() is members.included() is None
    assert str(members) == f"ProcessSet(process_set_id=None, ranks={members.ranks}, mpi_comm=None)"
    for wrong, words in (([0, 0], "twice"), (["0"], "integers"), (3.5, "mpi4py communicator")):
        with pytest.raises(ValueError, match=words):
            hvd.ProcessSet(wrong)
    assert hvd.global_process_set.process_set_id == 0
    assert hvd.global_process_set.ranks == list(range(ranks))
    assert hvd.global_process_set.rank() == me
    if ranks == 1:
        return
    assert hvd.add_process_set(members) is members
    assert members.size() == len(members.ranks)
    assert members.included() == (me in members.ranks)
    if members.included():
        assert members.rank() == members.ranks.index(me)
    else:
        with pytest.raises(ValueError, match="not in the process set"):
            members.rank()
    assert hvd.remove_process_set(members)
    assert members.process_set_id is None


def test_add_and_remove_process_sets(ranks: int) -> None:
    assert not hvd.remove_process_set(hvd.global_process_set)
    assert not hvd.remove_process_set(hvd.ProcessSet([0]))
    with pytest.raises(ValueError, match="these ranks exists"):
        hvd.add_process_set(list(range(ranks)))
    with pytest.raises(ValueError, match="process set"):
        hvd.add_process_set([ranks])
    if ranks == 1:
        return
    first, second = hvd.add_process_set([0]), hvd.add_process_set(hvd.ProcessSet([1]))
    numbers = (first.process_set_id, second.process_set_id)
    assert len({0, *numbers}) == 3
    with pytest.raises(ValueError, match="these ranks exists"):
        hvd.add_process_set([1])
    assert hvd.remove_process_set(first)
    for _ in range(70):  # more than there are numbers
        assert hvd.remove_process_set(hvd.add_process_set([0]))
    again = hvd.add_process_set([0])
    # Sets progress by themselves: each of these ranks waits for nobody.
    for one in (again, second):
        if one.included():
            got = hvd.allreduce(torch.tensor([5.0]), op=hvd.Sum, process_set=one)
            assert got.item() == 5.0
    hvd.remove_process_set(again)
    hvd.remove_process_set(second)
    with pytest.raises(ValueError, match="not registered"):
        hvd.allreduce(torch.ones(1), process_set=second)


def test_compression() -> None:
    x = torch.tensor([1 / 3, -2.0, 70000.0])
    for compressor, wanted in (
        (hvd.Compression.none, x),
        (hvd.Compression.fp16, x.half()),
        (hvd.Compression.bf16, x.bfloat16()),
    ):
        small, context = compressor.compress(x)
        assert torch.equal(small, wanted)
        assert torch.equal(compressor.decompress(small, context), wanted.float())
    from horoacc.torch.compression import Compressor

    with pytest.raises(NotImplementedError):
        Compressor.compress(x)
    with pytest.raises(NotImplementedError):
        hvd.allreduce(x, compression=Compressor)
    got = hvd.allreduce(x[:2], compression=hvd.Compression.fp16)
    assert torch.equal(got, x[:2].half().float())


def test_reductions_have_horovods_numbers() -> None:
    x = torch.tensor([hvd.rank() + 1.0])
    size = hvd.size()
    ranks = [float(rank + 1) for rank in range(size)]
    product = float(torch.tensor(ranks).prod())
    wanted: list[Any] = [sum(ranks) / size, sum(ranks), None, 1.0, float(size), product]
    assert [hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product] == list(range(6))
    for op, value in enumerate(wanted):
        if value is not None:
            assert hvd.allreduce(x, op=op).item() == pytest.approx(value)
    with pytest.raises(ValueError, match="no reduction"):
        hvd.allreduce(x, op=6)


def test_errors_have_horovods_types() -> None:
    assert issubclass(hvd.HorovodInternalError, RuntimeError)
    assert errors.HostsUpdatedInterrupt(True).skip_sync
    version = errors.HorovodVersionMismatchError("torch", "1", "2")
    assert (version.name, version.version, version.installed_version) == ("torch", "1", "2")
    if hvd.size() > 1:
        # A disagreement is what elastic jobs catch; a bad argument is not.
        for differ in ({"op": hvd.rank() % 2}, {"prescale_factor": 1.0 + hvd.rank()}):
            with pytest.raises(hvd.HorovodInternalError) as caught:
                hvd.allreduce(torch.ones(2), name="differs", **differ)
            assert not isinstance(caught.value, ValueError)
        with pytest.raises(hvd.HorovodInternalError, match="data type"):
            hvd.allreduce(torch.ones(2, dtype=(torch.int32, torch.int64)[hvd.rank() % 2]))
    with pytest.raises(ValueError, match="bool"):
        hvd.allreduce(torch.ones(2, dtype=torch.bool))
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()


def test_internals_that_tools_import(ranks: int) -> None:
    everybody = list(range(ranks))
    assert BASICS._get_process_set_ids_and_ranks() == {0: everybody}
    assert (BASICS._process_set_rank(0), BASICS._process_set_size(0)) == (hvd.rank(), ranks)
    assert BASICS._remove_process_set_impl(0) is None
    for question in (BASICS._process_set_rank, BASICS._process_set_size):
        with pytest.raises(ValueError, match="number 77"):
            question(77)
    with pytest.raises(ValueError, match="these ranks exists"):
        BASICS._add_process_set_impl(everybody)
    if ranks > 1:
        last = BASICS._add_process_set_impl([ranks - 1])
        assert BASICS._get_process_set_ids_and_ranks() == {0: everybody, last: [ranks - 1]}
        assert BASICS._process_set_size(last) == 1
        assert BASICS._remove_process_set_impl(last) == last
