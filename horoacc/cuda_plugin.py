"""Where the CUDA plug-in lies, and whether it works on this machine."""

from __future__ import annotations

from horoacc.mpi_plugins import FOLDER

LIBRARY = FOLDER / "libhoroacc_cuda.so"
CHECK = "tests/gpu/run.sh"
"""The script that checks all of the following on a GPU; in the sources, not in a wheel."""
NOT_RUN = (
    "copies between GPU and host, streams, events",
    "large tensors in chunks, copied in, reduced and copied out at once",
    "CUDA tensors in horoacc.torch",
    "CUDA tensors in torch.distributed",
    "tensors and variables of GPUs in horoacc.tensorflow",
    "hooks on gradients of a GPU",
    "reduce kernels",
    "pack kernels",
    "persistent kernels (mode K)",
    "mode L: memory and events of other processes, one leader's kernels",
    "mode S: words that streams write and wait for, memory of other GPUs",
    "mode K: kernels of several processes that wait for each other",
    "mode NCCL: its library, and its kernels in the engine",
    "other collectives from GPU to GPU",
    "the choice of a mode, and its refusal",
    "the refusal of calls while a CUDA graph is captured",
    "process sets that take turns on GPUs",
    "modes measured by `horoaccrun tune -- --gpus`, NCCL among them, and chosen by size",
    "what becomes of mapped memory when its process is killed",
    "launches, residency, the GPU's memory order",
    "the tables of large packs",
    "conversions of 16-bit floats by the GPU",
    "compute-sanitizer",
    "speed",
)
"""Code that is compiled, but that no GPU has run yet; docs/gpu.md says how it is tested."""


def nccl(library: str) -> str:
    """Says which version this library of NCCL is, for HOROACC_GPU_MODE=nccl, or what it lacks."""
    from horoacc import _core

    version, missing = _core.nccl_version(library)
    return missing or f"{version} ({library})"


def trouble(device: int = 0) -> str:
    """Says why the kernels for GPUs cannot run here: the missing part, or "" if they run.

    The first call for a GPU takes it into use.
    """
    from horoacc import _core

    return _core.cuda_trouble(str(LIBRARY), device)
