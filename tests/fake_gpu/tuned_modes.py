"""A rank of a job that measures the modes of its GPU, and then chooses by a table like that.

tuned_modes.py TABLE (test_tuned_modes.py)
"""

import os
import sys
import types

import fake_gpu
import torch

import horoacc
import horoacc.torch as hvd
from horoacc import selection_table, tune
from horoacc.selection_table import Measurement

file = sys.argv[1]
fake_gpu.install()
torch.cuda.get_device_properties = lambda device: types.SimpleNamespace(uuid=f"GPU-{device}")
os.environ["HOROACC_SELECTION_TABLE"] = file
sys.argv[1:] = ["--gpus", "--most", "8K", "--batch", "0.001"]
assert tune.main() == 0


def modes(table: str, counts: dict[int, torch.dtype]) -> list[str]:
    """The modes that reduce such tensors, in a job that has this table."""
    os.environ["HOROACC_SELECTION_TABLE"] = table
    hvd.init()
    found = []
    for count, dtype in counts.items():
        before = horoacc.counters()
        total = hvd.allreduce(torch.ones(count, dtype=dtype).to("cuda"), op=hvd.Sum)
        assert total.cpu().tolist() == [float(hvd.size())] * count
        after = horoacc.counters()
        found += [name for name in ("leader", "stream", "kernel", "nccl", "moved")
                  if after[f"gpu_{name}_bytes"] > before[f"gpu_{name}_bytes"]]  # fmt: skip
        assert after["gpu_bytes"] == before["gpu_bytes"]
    sent = hvd.broadcast(torch.full((100,), hvd.rank()).to("cuda"), 1)
    assert sent.cpu().tolist() == [1] * 100
    hvd.shutdown()
    return found


ranks = int(os.environ["HOROACC_SIZE"])
times = {"gpu_leader": (3, 3, 3), "gpu_stream": (4, 1, 4), "gpu_nccl": (5, 5, 1)}
sizes = (1 << 10, 1 << 16, 1 << 22)
rows = [Measurement(name, (ranks,), size, seconds) for name, of_sizes in times.items()
        for size, seconds in zip(sizes, of_sizes, strict=True)]  # fmt: skip
other = [row._replace(hosts=(1,) * ranks) for row in rows]
if os.environ["HOROACC_RANK"] == "0":
    from pathlib import Path

    selection_table.save(Path(f"{file}.made"), [*rows, Measurement("ring", (ranks,), 64, 1.0)])
    selection_table.save(Path(f"{file}.other"), other)
asked = {100: torch.float32, 20_000: torch.float32, 1_000_000: torch.float32,
         1_000_001: torch.int16}  # fmt: skip
assert modes(f"{file}.made", asked) == ["leader", "stream", "nccl", "leader"]
assert modes(f"{file}.other", asked) == ["leader"] * 4, "of another shape"
os.environ["HOROACC_REDUCTION"] = "canonical"
assert modes(f"{file}.made", asked) == ["leader", "stream", "leader", "leader"]
del os.environ["HOROACC_REDUCTION"]
os.environ["HOROACC_NCCL_LIBRARY"] = "/nowhere/libnccl.so.2"
assert modes(f"{file}.made", asked) == ["leader", "stream", "leader", "leader"]
print("all as measured", flush=True)
