"""What `horoaccrun doctor` runs with the interpreter of the ranks on each host, sent as text.

It tells the parts of that installation in lines of JSON after a mark, each as soon as it is known:
one that hangs or crashes, as a driver may, takes away only itself and what comes after it.

    python - MARK PACKAGES MPIRUN FLAVOUR < rank_probe.py
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

_LIMIT = 300  # seconds, if nobody ends this process
# Loads the first MPI library that can be loaded, then the plug-in.
_LOAD = """
import ctypes, sys
for name in sys.argv[2:]:
    try:
        ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
        break
    except OSError as error:
        why = error
else:
    raise why
ctypes.CDLL(sys.argv[1])
"""


def version(name: str) -> str:
    """An installed package's version without importing it; "" if there is none."""
    from importlib import metadata

    spec = importlib.util.find_spec(name)
    if spec is None:
        return ""
    folder = os.path.dirname(spec.origin or "")
    try:
        with open(os.path.join(folder, "_version.py")) as file:
            if found := re.search(r'__version__\s*=\s*"([^"]+)"', file.read()):
                return found[1]
    except OSError:
        pass
    for dist in [name, name.replace("_", "-"), *metadata.packages_distributions().get(name, [])]:
        try:
            return metadata.version(dist)
        except metadata.PackageNotFoundError:
            continue
    return "of an unknown version"


def packages(names: list[str]) -> dict[str, dict[str, str]]:
    """The versions and folders of packages that are there."""
    found = {}
    for name in names:
        if there := version(name):
            spec = importlib.util.find_spec(name)
            found[name] = {
                "version": there,
                "folder": os.path.dirname(str(spec.origin)) if spec else "",
            }
    return found


def core() -> str:
    """Why the core cannot be loaded, or ""."""
    try:
        importlib.import_module("horoacc._core").version()
    except ImportError as error:
        return str(error)
    return ""


def mpirun(path: str) -> dict[str, str]:
    """What this host's mpirun says of itself."""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"error": getattr(error, "strerror", None) or str(error)}
    return {"text": " ".join(done.stdout.split())[:300]}


def mpi(mpirun_path: str, flavour: str) -> dict[str, str]:
    """mpi4py's version, the MPI library that it loads, and why the plug-in cannot be loaded."""
    found = {}
    try:
        mpi4py = importlib.import_module("mpi4py")
        found["mpi4py"] = mpi4py.__version__
        mpi4py.rc.initialize = False
        library = importlib.import_module("mpi4py.MPI").Get_library_version()
        found["library"] = library.replace("\0", "").splitlines()[0].split(", package")[0].strip()
    except (ImportError, RuntimeError) as error:
        found["error"] = str(error)
    path = importlib.import_module("horoacc.mpi_plugins").plugin(flavour)
    if not path.is_file():
        return {**found, "plugin": f"{path} was not built"}
    # Where the core looks for the library. Another process, for mpi4py may have loaded another MPI.
    prefixes = (os.path.dirname(os.path.dirname(os.path.realpath(mpirun_path))), sys.prefix)
    names = ("libmpi.so.40",) if flavour == "openmpi" else ("libmpi.so.12", "libmpich.so.12")
    libraries = [os.environ.get("HOROACC_MPI_LIBRARY", "")]
    for prefix in prefixes:
        libraries += [f"{prefix}/{lib}/{name}" for lib in ("lib", "lib64") for name in names]
    tried = [one for one in libraries if one and os.path.exists(one)] + list(names)
    done = subprocess.run(
        [sys.executable, "-S", "-c", _LOAD, str(path), *tried], capture_output=True, text=True
    )
    if done.returncode:
        found["plugin"] = (done.stderr.strip().splitlines() or [f"code {done.returncode}"])[-1]
    return found


def gpus() -> dict[str, Any]:
    """The GPUs that CUDA sees, as this process's variables let it, and the plug-in's complaint."""
    found: dict[str, Any] = {"count": 0, "names": []}
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return {**found, "error": str(error)}
    number, name = ctypes.c_int(), ctypes.create_string_buffer(128)
    if code := cuda.cuInit(0):
        text = ctypes.c_char_p()
        cuda.cuGetErrorString(code, ctypes.byref(text))
        return {**found, "error": f"cuInit: {(text.value or b'error').decode()} ({code})"}
    if cuda.cuDriverGetVersion(ctypes.byref(number)) == 0:
        found["cuda"] = f"{number.value // 1000}.{number.value % 1000 // 10}"
    if cuda.cuDeviceGetCount(ctypes.byref(number)) == 0:
        found["count"] = number.value
    for device in range(found["count"]):
        if cuda.cuDeviceGetName(name, 128, device) == 0:
            found["names"].append(name.value.decode())
    if found["count"]:
        found["trouble"] = importlib.import_module("horoacc.cuda_plugin").trouble()
    return found


def main(mark: str, names: str, mpirun_path: str, flavour: str) -> None:
    """Prints the parts."""
    signal.alarm(_LIMIT)
    # The working folder is no place where a script's imports come from.
    sys.path[:] = [folder for folder in sys.path if folder]
    parts: dict[str, Callable[[], Any]] = {
        "python": platform.python_version,
        "packages": lambda: packages(names.split(",")),
        "core": core,
    }
    if mpirun_path:
        parts["mpirun"] = lambda: mpirun(mpirun_path)
        parts["mpi"] = lambda: mpi(mpirun_path, flavour)
    parts["gpus"] = gpus
    for part, tell in parts.items():
        try:
            told = {part: tell()}
        except Exception as error:  # such as an older HoroACC without that module
            told = {part: {"error": f"{type(error).__name__}: {error}"}}
        print(mark + json.dumps(told), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
