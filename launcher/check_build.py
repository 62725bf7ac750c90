"""`horoaccrun --check-build`: the frameworks and the parts of HoroACC that are there."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

from horoacc import _version, cuda_plugin
from horoacc.launcher.mpirun import MpirunError, find_mpirun
from horoacc.mpi_plugins import plugin


def report(given_mpirun: str, environ: Mapping[str, str]) -> tuple[str, bool]:
    """The report, in the shape of horovodrun's, and whether a job can run at all."""
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
        mpirun, starts = None, str(error)
    openmpi, mpich = plugin("openmpi").is_file(), plugin("mpich").is_file()
    lines = [f"HoroACC v{_version.__version__}:", "", "Available Frameworks:"]
    lines += [_mark(_installed("tensorflow"), "TensorFlow"), _mark(_installed("torch"), "PyTorch")]
    lines += ["", "Available Controllers:"]
    lines += [_mark(not core and (openmpi or mpich), "MPI"), _mark(not core, "TCP")]
    lines += ["", "Available Tensor Operations:", _mark(not core, "Shared memory")]
    lines += ["", "MPI plug-ins:", _mark(openmpi, "Open MPI"), _mark(mpich, "MPICH")]
    lines += ["", "GPUs:", _mark(cuda_plugin.LIBRARY.is_file(), "CUDA plug-in")]
    if not core:
        trouble = cuda_plugin.trouble()
        lines += [f"    here: {trouble or 'it works'}"]
        library = environ.get("HOROACC_NCCL_LIBRARY") or "libnccl.so.2"
        lines += [f"    NCCL: {cuda_plugin.nccl(library)}"]
    check = f"{cuda_plugin.CHECK} of the sources of v{_version.__version__}"
    lines += [f"    no GPU has run this yet; {check} checks it on one:"]
    lines += [f"        {part}" for part in cuda_plugin.NOT_RUN]
    lines += ["", f"mpirun: {starts}"]
    if core:
        lines += ["", f"The core cannot be loaded: {core}"]
    return "\n".join(lines), not core


def _mark(there: bool, name: str) -> str:
    return f"    [{'X' if there else ' '}] {name}"


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None
