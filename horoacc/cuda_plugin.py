"""Where the CUDA plug-in lies, and whether it works on this machine."""

from __future__ import annotations

from horoacc.mpi_plugins import FOLDER

LIBRARY = FOLDER / "libhoroacc_cuda.so"
CHECK = "tests/gpu/run.sh"
"""The script that checks all of the following on a GPU; in the sources, not in a wheel."""
NOT_RUN = (
    "tensors and variables of GPUs in horoacc.tensorflow",
    "reduce kernels: some of float32 and float64, of 3, 5 and 16 sources",
    "mode S: memory of other GPUs",
    "mode K: kernels of several processes that wait for each other, with and without MPS",
    "mode NCCL: its library, and its kernels in the engine",
    "results that the engine allocates",
    "the refusal of a mode",
    "the refusal of calls while a CUDA graph is captured",
    "process sets that take turns on GPUs",
    "modes measured by `horoaccrun tune -- --gpus`, NCCL among them, and chosen by size",
    "compute-sanitizer",
    "speed with a GPU for each rank",
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
