"""Times of the modes in which GPUs reduce, for `horoaccrun tune -- --gpus`.

A table names them `gpu_leader`, `gpu_stream`, `gpu_kernel` and `gpu_nccl`, and the hosts of such a
row are GPUs: the ranks of each. `HOROACC_GPU_MODE=auto` chooses by them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import horoacc as hvd
from horoacc.errors import ConfigError
from horoacc.selection_table import OF_GPUS, Measurement
from horoacc.settings import TABLE

if TYPE_CHECKING:
    import torch

_CHOICES = next(setting.choices for setting in TABLE if setting.key == "gpu_mode")
MODES = tuple(mode for mode in _CHOICES if mode not in ("auto", "cpu_reduce"))
Clock = Callable[[Callable[[], object]], float]


def measure(sizes: Sequence[int], clock: Clock) -> tuple[list[Measurement], dict[str, str]]:
    """Measures every mode that the ranks of this job can have; a collective of all ranks.

    Args:
        sizes: Of the vector, in bytes.
        clock: Says how many seconds a call takes.

    Returns:
        The times that each rank measured, and why other modes are impossible here.
    """
    found, refused = [], {}
    before = os.environ.get("HOROACC_GPU_MODE")
    try:
        for mode in MODES:
            os.environ["HOROACC_GPU_MODE"] = mode
            hvd.init()
            try:
                shape = _ranks_of_gpus()
                for size in sizes:
                    seconds = clock(_allreduce(size))
                    found.append(Measurement(OF_GPUS + mode, shape, size, seconds))
            except ConfigError as error:
                refused[mode] = str(error)
            hvd.shutdown()
    finally:
        os.environ.pop("HOROACC_GPU_MODE")
        if before is not None:
            os.environ["HOROACC_GPU_MODE"] = before
    return found, refused


def _device() -> torch.device:
    """The GPU of this rank: one of its own, if there are enough."""
    import torch

    return torch.device("cuda", hvd.local_rank() % max(1, torch.cuda.device_count()))


def _ranks_of_gpus() -> tuple[int, ...]:
    """How many ranks have each GPU, by the first of them."""
    import torch

    from horoacc.objects import allgather_object

    properties = torch.cuda.get_device_properties(_device())
    return tuple(Counter(allgather_object(str(properties.uuid), name="gpus")).values())


def _allreduce(size: int) -> Callable[[], object]:
    import torch

    import horoacc.torch as hvd_torch

    tensor = torch.zeros(max(1, size // 4), dtype=torch.float32).to(_device())

    def call() -> None:
        hvd_torch.allreduce_(tensor, op=hvd_torch.Sum, name=f"gpu{size}")
        tensor[:1].cpu()  # until it is there

    return call
