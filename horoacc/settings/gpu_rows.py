"""The rows of the core's table that are about GPUs."""

from __future__ import annotations

from horoacc.settings.setting import Setting

GPU_ROWS: tuple[Setting, ...] = (
    Setting(
        "cuda_plugin",
        "str",
        "",
        "HOROACC_CUDA_PLUGIN",
        "A shared library through which GPUs are reached. Empty: the one that was built with "
        "HoroACC, where there is a driver.",
        flag="--cuda-plugin",
        yaml=("params", "cuda_plugin"),
    ),
    Setting(
        "gpu_mode",
        "str",
        "auto",
        "HOROACC_GPU_MODE",
        "Who reduces tensors on GPUs. `leader`: one rank's kernels, on the GPU of all ranks; "
        "`kernel`: kernels that wait for each other, where no two ranks share a GPU; `stream`: "
        "every rank's kernels, and streams that wait for each other; `cpu_reduce`: the CPU; "
        "`nccl`: NCCL's kernels, in NCCL's order, if all ranks can load it; "
        "`auto`: the first of these but `nccl` that all ranks of a process set can, `kernel` only "
        "on GPUs that no other process may use; or, for the sizes for which it was measured to be "
        "faster (`horoaccrun tune -- --gpus`), another of them, or `nccl`. What is ordered and "
        "impossible is an error on all ranks that says why. Rank 0's holds.",
        flag="--gpu-mode",
        yaml=("params", "gpu_mode"),
        choices=("auto", "cpu_reduce", "leader", "stream", "kernel", "nccl"),
    ),
    Setting(
        "nccl_library",
        "str",
        "libnccl.so.2",
        "HOROACC_NCCL_LIBRARY",
        "NCCL's library, which is loaded only with `HOROACC_GPU_MODE=nccl`, or where `auto` has "
        "measured it: its path, or its name where the loader finds it (torch's, if torch has "
        "loaded one).",
        flag="--nccl-library",
        yaml=("params", "nccl_library"),
    ),
    Setting(
        "gpu_chunk_bytes",
        "int",
        2 << 20,
        "HOROACC_GPU_CHUNK_BYTES",
        "Where the CPU reduces for GPUs: larger tensors are copied in, reduced and copied out in "
        "chunks of this size, but at least 4096 bytes, all three at once. Rank 0's holds.",
        flag="--gpu-chunk-bytes",
        yaml=("params", "gpu_chunk_bytes"),
        least=0,
    ),
)
