"""`horoaccrun --check-build`: the frameworks and the parts of HoroACC that are there."""

from __future__ import annotations

import glob
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path

from horoacc import _version, cuda_plugin
from horoacc.launcher.mpirun import MpirunError, find_mpirun
from horoacc.mpi_plugins import plugin

_WIDTH = 80
_MORE = "More: horoaccrun --check-build --verbose; of all hosts: horoaccrun doctor"


def report(
    given_mpirun: str, environ: Mapping[str, str], verbose: bool = False
) -> tuple[str, bool]:
    """The report, in the blocks of horovodrun's, and whether a job can run at all.

    It fits a screen of 80 columns and 24 lines; with `verbose` no line is shortened, and what no
    GPU has run yet is listed.
    """
    core = ""
    try:
        from horoacc import _core

        _core.version()
    except ImportError as error:
        core = str(error)
    try:
        mpirun = find_mpirun(given_mpirun, environ)
        starts = f"{mpirun.path} ({mpirun.flavour} {mpirun.version})" if mpirun else "none"
    except MpirunError as error:
        starts = str(error)
    library = environ.get("HOROACC_NCCL_LIBRARY") or "libnccl.so.2"
    nccl = not core and _core.nccl_version(library)[1] == ""
    openmpi, mpich = plugin("openmpi").is_file(), plugin("mpich").is_file()
    lines = [f"HoroACC v{_version.__version__}:", "", "Available Frameworks:"]
    lines += [_mark(_installed("tensorflow"), "TensorFlow"), _mark(_installed("torch"), "PyTorch")]
    lines += ["", "Available Controllers:"]
    lines += [_mark(not core and (openmpi or mpich), "MPI"), _mark(not core, "TCP")]
    lines += ["", "Available Tensor Operations:"]
    lines += [_mark(not core, "Shared memory"), _mark(not core, "TCP")]
    lines += [_mark(openmpi, "Open MPI"), _mark(mpich, "MPICH")]
    lines += [_mark(cuda_plugin.LIBRARY.is_file(), "CUDA plug-in"), _mark(nccl, "NCCL")]
    lines += ["", f"mpirun: {starts}"]
    if core:
        lines += [f"The core cannot be loaded: {core}"]
    else:
        lines += [f"GPUs: {cuda_plugin.trouble() or 'they work'}"]
        lines += [f"NCCL: {cuda_plugin.nccl(library)}"]
        crypto, lacks = _core.libcrypto_version(environ.get("HOROACC_CRYPTO_LIBRARY", ""))
        lines += [f"Between hosts: {crypto or f'HMAC-SHA256 instead of AES-GCM: {lacks}'}"]
    lines += [f"Memory: {_memory()}"]
    if not verbose:
        return "\n".join([*map(_shortened, lines), _MORE]), not core
    check = f"{cuda_plugin.CHECK} of the sources of v{_version.__version__}"
    lines += ["", f"No GPU has run this yet; {check} checks it on one:"]
    lines += [f"    {part}" for part in cuda_plugin.NOT_RUN]
    return "\n".join(lines), not core


def _memory(root: str = "/sys") -> str:
    """The host's nodes of memory, and whether the ranks' shared memory gets huge pages."""
    nodes = len(glob.glob(f"{root}/devices/system/node/node[0-9]*")) or 1
    told = "1 NUMA node" if nodes == 1 else f"{nodes} NUMA nodes"
    setting = f"{root}/kernel/mm/transparent_hugepage/shmem_enabled"
    try:
        chosen = re.search(r"\[(\w+)\]", Path(setting).read_text(encoding="ascii"))
    except OSError:
        return f"{told}; the kernel has no huge pages for shared memory"
    kind = chosen[1] if chosen else "never"
    if kind in {"never", "deny"}:
        return f"{told}; no huge pages: '{kind}' in {setting}"
    return f"{told}; huge pages for shared memory: {kind}"


def _shortened(line: str) -> str:
    """Without the causes at its end, or its middle, if it is too long: a path's end says most."""
    line = " ".join(line.splitlines())
    while len(line) > _WIDTH and line.count(": ") > 1:
        line = line.rpartition(": ")[0]
    if len(line) <= _WIDTH:
        return line
    half = (_WIDTH - 1) // 2
    return f"{line[:half]}…{line[-half:]}"


def _mark(there: bool, name: str) -> str:
    return f"    [{'X' if there else ' '}] {name}"


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None
