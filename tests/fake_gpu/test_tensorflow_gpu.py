"""TensorFlow's tensors and variables on the GPU that the host plays.

Each rank has a GPU of its own, which is TensorFlow's device 0 on both. So allreduces and broadcasts
go from GPU to GPU (mode S), and what GPUs cannot reduce goes through the CPU.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_cuda import ROOT, plugin

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
hvd = importlib.import_module("horoacc.tensorflow")
fake_tensorflow = importlib.import_module("fake_tensorflow")
sys.path.append(str(ROOT / "tests/gpu"))
check = importlib.import_module("check_tensorflow")

ENV = {"HOROACC_CUDA_PLUGIN": str(plugin()), "FAKE_GPU_EACH": "1"}
pytestmark = pytest.mark.ranks(2, framework="horoacc.tensorflow", env=ENV)

# Every op of the library, and its arguments in the host's memory on every device.
OPS: dict[str, list[str]] = {
    "HorovodAllgather": [],
    "HorovodAllreduce": [],
    "HorovodAlltoall": ["received_splits", "splits"],
    "HorovodBroadcast": [],
    "HorovodBroadcastInplace": [],
    "HorovodBroadcastInplaceResource": ["variables"],
    "HorovodGroupedAllgather": [],
    "HorovodGroupedAllreduce": [],
    "HorovodGroupedReducescatter": [],
    "HorovodJoin": ["output_last_joined_rank"],
    "HorovodLocalRank": ["number"],
    "HorovodLocalSize": ["number"],
    "HorovodProcessSetIncluded": ["number"],
    "HorovodRank": ["number"],
    "HorovodReducescatter": [],
    "HorovodSize": ["number"],
}


def install() -> Any:
    """Gives this rank the device, and the checks for GPUs."""
    device = fake_tensorflow.install()
    check.DEVICE, check.late = fake_tensorflow.DEVICE, device.twice
    return device


def counted(name: str, body: Callable[[], Any]) -> int:
    """How much a counter of this rank has gone up by."""
    before = hvd.counters()[name]
    body()
    return int(hvd.counters()[name] - before)


def test_gpus_have_the_cpus_kernels() -> None:
    install()
    from tensorflow.python.framework import kernels

    library = importlib.import_module("horoacc.tensorflow._ops").library()
    names = {name for name in dir(library) if name.startswith("horovod_")}
    names = {name for name in names if not name.endswith("_eager_fallback")}
    assert {name.title().replace("_", "") for name in names} == set(OPS)
    types = ["CPU", "FAKE_GPU", *(["GPU"] if tf.test.is_built_with_cuda() else [])]
    for op, on_host in OPS.items():
        found = kernels.get_registered_kernels_for_op(op).kernel
        assert sorted(one.device_type for one in found) == types, op
        for one in found:
            assert sorted(one.host_memory_arg) == on_host, op


@pytest.mark.parametrize(
    "part",
    [
        "reductions_are_exact",
        "movements_are_exact",
        "streams_are_kept",
        "variables_are_broadcast",
        "sessions_broadcast_variables",
        "gradients_are_the_same",
    ],
)
def test_what_is_checked_on_a_gpu(part: str) -> None:
    device = install()
    getattr(check, part)()
    assert device.unpinned_bytes == 0


def test_they_go_from_gpu_to_gpu() -> None:
    install()
    x = check.put(np.full(5000, hvd.rank() + 1, np.float32))
    assert counted("gpu_stream_bytes", lambda: hvd.allreduce(x, op=hvd.Sum)) == 20_000
    assert counted("gpu_moved_bytes", lambda: hvd.broadcast(x, 1)) == 20_000
    assert counted("gpu_moved_bytes", lambda: hvd.allgather(x)) == 20_000
    assert counted("gpu_moved_bytes", lambda: hvd.alltoall(x)) == 20_000
    y = check.put(np.full(5000, hvd.rank() + 1, np.complex64))
    assert counted("gpu_stream_bytes", lambda: hvd.allreduce(y, op=hvd.Sum)) == 40_000
    assert counted("gpu_stream_bytes", lambda: hvd.allreduce(y, op=hvd.Product)) == 40_000
    assert counted("gpu_stream_bytes", lambda: hvd.allreduce(x, op=hvd.Adasum)) == 20_000
    with tf.device("CPU:0"):
        here = tf.constant(np.ones(100_000, np.float32))
        assert counted("gpu_stream_bytes", lambda: hvd.allreduce(here)) == 0


def test_what_cannot_work_is_said_on_all_ranks() -> None:
    install()
    x = check.put(np.ones((4, 2), np.float32))
    errors = tf.errors
    for way in check.in_both(lambda x: hvd.broadcast(x, 7, name="no_such_root")):
        with pytest.raises(errors.InvalidArgumentError, match="root rank 7"):
            way(x)
    for way in check.in_both(lambda x: hvd.alltoall(x, [[1], [3]], name="no_vector")):
        with pytest.raises(errors.InvalidArgumentError, match="one dimension"):
            way(x)
    for way in check.in_both(lambda x: hvd.reducescatter(x, op=hvd.Max, name="no_such_op")):
        with pytest.raises(errors.AbortedError, match="Average and Sum"):
            way(x)
    for way in check.in_both(lambda x: hvd.allreduce(x, name="differs")):
        with pytest.raises(errors.FailedPreconditionError, match="shape"):
            way(check.put(np.ones(3 + hvd.rank(), np.float32)))
    here = tf.device("CPU:0" if hvd.rank() else check.DEVICE)
    with here, pytest.raises(errors.FailedPreconditionError, match="mismatched device"):
        hvd.allreduce(tf.identity(x), name="mixed")
    check.same(hvd.allreduce(x, op=hvd.Sum), np.full((4, 2), 2), "float32")


def test_questions_and_join() -> None:
    install()
    with tf.device(check.DEVICE):
        asked = [hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op()]
        assert [int(number) for number in asked] == [hvd.rank(), 2, hvd.rank(), 2]
        assert int(hvd.process_set_included_op()) == 1
        last = int(hvd.join())
    assert last in (0, 1)
