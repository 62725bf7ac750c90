"""Builds a framework's ops once, where the framework is.

A framework op is compiled against the framework's headers, so a wheel has those of one version of
each framework. Others are built when HoroACC is installed beside the framework; otherwise at the
first import, or by `horoaccrun` before it starts the ranks, into a cache that all processes of a
user share: one of them builds under a lock, the others wait for it. A library of the cache is used
only if no other user but root can have written it; a host without a compiler loads one of another
host.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

from horoacc import cache
from horoacc._version import __version__

CompileCommand = Sequence[str] | Callable[[Path], Sequence[str]]

_PACKAGE = Path(__file__).resolve().parent
_PREBUILT = _PACKAGE / "lib" / "ops"
# Where sources may be, and which.
_ROOTS, _SOURCES = (_PACKAGE / "_sources", _PACKAGE.parent), ("torch_ops", "tensorflow_ops", "csrc")
_LOCK_SECONDS = 600
# Their ops look Python's functions up in the process, so that one library serves all interpreters.
_WITHOUT_PYTHON = ("tensorflow",)


class OpsBuildError(RuntimeError):
    """A framework's ops could not be compiled."""


def source_folder(name: str) -> Path:
    """Where `torch_ops`, `tensorflow_ops` or `csrc` is, installed or in a checkout."""
    for root in _ROOTS:
        if (root / name).is_dir():
            return root / name
    raise OpsBuildError(f"the installation of horoacc in {_PACKAGE} lacks the folder {name}")


def sources_of(name: str) -> list[Path]:
    """Every source file of a framework's ops: those of its folder, and the core's headers."""
    folder = source_folder(name)
    files = sorted(path for path in folder.iterdir() if path.suffix in (".cc", ".h"))
    api = source_folder("csrc") / "api"
    shared = ["horoacc.h", "engine_ref.h", "known_engines.h"]
    if name == "torch_ops":  # TensorFlow's are those of every interpreter, and this knows one
        shared.append("python_engine_calls.h")
    return [*files, *(api / header for header in shared)]


def core_library() -> Path:
    """The shared library with the core's C functions, to link an op against."""
    return _PACKAGE / "lib" / "libhoroacc.so"


def one_unit_command(
    sources: Sequence[Path], output: Path, flags: Sequence[str], libraries: Sequence[str]
) -> list[str]:
    """The command that compiles a framework's ops, of which the `*.cc` are one translation unit.

    Compiling the framework's headers takes most of the time.
    """
    *included, last = (str(source) for source in sources if source.suffix == ".cc")
    return [
        os.environ.get("CXX", "g++"), "-std=c++20", "-O2", "-shared", "-fPIC", "-Wall", "-Wextra",
        "-fvisibility=hidden", *flags, "-I", str(source_folder("csrc")),
        *(part for file in included for part in ("-include", file)), last, *libraries,
        "-o", str(output),
    ]  # fmt: skip


def ensure_built(framework: str, sources: Sequence[Path], compile_command: CompileCommand) -> Path:
    """Gives the compiled ops of a framework, `torch` or `tensorflow`, building them if need be.

    A `compile_command` that is a list gets `-o <file>` appended; a function is called with the file
    to write. OpsBuildError, with the command and its output, if there is no compiler or it failed.
    """
    if found := _named_by(_PREBUILT / _ready_name(framework, sources)):
        return found
    flags = _flags(compile_command)
    cached = cache.folder(os.environ) / _ready_name(framework, sources, _place(framework))
    library = _library(framework, cached, flags)
    if os.environ.get("HOROACC_OPS_PREBUILD") != "1":
        if not _has_compiler(compile_command) and (found := _named_by(cached)) and _is_ours(found):
            return found
        _ensure(framework, library, lambda: _build(framework, library, cached, compile_command))
        return library
    prebuilt = _PREBUILT / _ready_name(framework, sources)
    packed = _library(framework, prebuilt, flags)
    if _is_there(library):
        _ensure(framework, packed, lambda: _place_both(library, packed, prebuilt, framework))
    else:
        _ensure(framework, packed, lambda: _build(framework, packed, prebuilt, compile_command))
    return packed


def is_built(framework: str, sources: Sequence[Path]) -> bool:
    """Whether ops of these sources were built for the installed framework, with any compiler.

    Does not import the framework, so that `horoaccrun` can ask at no cost.
    """
    prebuilt = _PREBUILT / _ready_name(framework, sources)
    cached = cache.folder(os.environ) / _ready_name(framework, sources, _place(framework))
    return (_named_by(prebuilt) or _named_by(cached)) is not None


def _library(framework: str, ready: Path, flags: str) -> Path:
    """The library that these flags make; a ready file beside it will name it."""
    key = hashlib.sha256(f"{ready.name}\n{flags}".encode()).hexdigest()[:16]
    return ready.parent / f"{framework}-ops-{key}.so"


def _ensure(framework: str, library: Path, make: Callable[[], None]) -> None:
    """Has the library made unless it is there; by one process."""
    if _is_there(library):
        return
    folder = library.parent
    try:
        _make_own(folder)
        with _lock(folder / f"{framework}.lock"):
            if not _is_there(library):  # the process that held the lock before may have built it
                make()
    except OSError as error:
        raise OpsBuildError(
            f"cannot build the {framework} ops in {folder}: {error}; "
            "set HOROACC_CACHE_DIR to a folder that can be written"
        ) from error


def _distribution(framework: str) -> metadata.Distribution | None:
    """The framework as it is installed: tensorflow-cpu is TensorFlow with the same headers."""
    for name in (framework, f"{framework}-cpu"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.distribution(name)
    return None


def _place(framework: str) -> str:
    """Where the framework is installed: environments share a cache, but not their headers."""
    found = _distribution(framework)
    return str(found.locate_file("")) if found else ""


def _headers(framework: str) -> str:
    """Which headers the installed framework has; ops fit every framework that has the same.

    Builds of one torch for the CPU and for CUDA (2.13.0+cpu, 2.13.0+cu130) are of one commit, and
    of the headers that the ops include a build writes one: that file counts, not the suffix.
    """
    found = _distribution(framework)
    if found is None:
        return "unknown"
    root = Path(str(found.locate_file(framework)))
    try:
        commit = re.findall(r"^git_version = .*$", (root / "version.py").read_text(), re.MULTILINE)
        written = (root / "include/torch/headeronly/macros/cmake_macros.h").read_text()
    except OSError:
        return found.version
    return "\n".join((found.version.partition("+")[0], *commit, written))


def _ready_name(framework: str, sources: Sequence[Path], place: str = "") -> str:
    """A file that names the library built for this framework, these sources and this Python.

    In the package it does not depend on the place, which is another when it was built.
    """
    digest = hashlib.sha256()
    soabi = "" if framework in _WITHOUT_PYTHON else sysconfig.get_config_var("SOABI") or ""
    for part in (__version__, _headers(framework), soabi, place):
        digest.update(part.encode() + b"\0")
    for source in sorted(sources, key=lambda path: path.name):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return f"{framework}-{digest.hexdigest()[:16]}.ready"


def _built_for(framework: str) -> str:
    """What ops that are built now are for, in words."""
    found = _distribution(framework)
    version = found.version.partition("+")[0] if found else "of an unknown version"
    python = f" on Python {sys.version_info[0]}.{sys.version_info[1]}"
    return f"{framework} {version}{'' if framework in _WITHOUT_PYTHON else python}"


def _packed(framework: str) -> str:
    """What the compiled ops in the package are for: the second line of the files that name them."""
    ready = sorted(_PREBUILT.glob(f"{framework}-*.ready"))
    return " and ".join("".join(path.read_text().splitlines()[1:]) for path in ready) or "none"


def _command_line(command: CompileCommand, output: Path) -> list[str]:
    if callable(command):
        return [str(part) for part in command(output)]
    return [*(str(part) for part in command), "-o", str(output)]


def _named_by(ready: Path) -> Path | None:
    """The library that a ready file names, if both are there."""
    try:
        name = ready.read_text().partition("\n")[0]
    except (OSError, ValueError):
        return None
    library = ready.parent / name
    return library if Path(name).name == name and library.is_file() else None


def _is_there(library: Path) -> bool:
    """Whether the library can be loaded: those of the package are what its installer put there."""
    return library.is_file() and (library.parent == _PREBUILT or _is_ours(library))


def _is_ours(library: Path) -> bool:
    """Whether only this user and root can have written a library."""
    return all(_is_own(path.stat(follow_symlinks=False)) for path in (library, library.parent))


def _is_own(found: os.stat_result) -> bool:
    return found.st_uid in (0, os.geteuid()) and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _make_own(folder: Path) -> None:
    """Makes a folder to which no other user can write. OpsBuildError: it is another's."""
    folder.mkdir(parents=True, exist_ok=True)
    if folder == _PREBUILT or _is_own(folder.stat()):
        return
    if folder.stat().st_uid != os.geteuid():
        raise OpsBuildError(
            f"{folder} belongs to another user, whose libraries this one must not load; "
            "set HOROACC_CACHE_DIR to a folder of your own"
        )
    for path in folder.iterdir():  # written by whom?
        if path.suffix in (".so", ".ready"):
            path.unlink(missing_ok=True)
    folder.chmod(stat.S_IMODE(folder.stat().st_mode) & ~(stat.S_IWGRP | stat.S_IWOTH))


def _has_compiler(command: CompileCommand) -> bool:
    return shutil.which(_command_line(command, Path("output"))[0]) is not None


def _flags(command: CompileCommand) -> str:
    """The parts of a build's key besides sources and framework: compiler and flags.

    Not where the sources lie: those of a checkout are a package's, and what they say counts.
    """
    line = _command_line(command, Path("output"))
    text = shlex.join(line)
    for root in _ROOTS:
        for name in _SOURCES:
            text = text.replace(str(root / name), name)
    return f"{_compiler_version(line[0])}\n{text}"


def _compiler_version(compiler: str) -> str:
    if shutil.which(compiler) is None:
        return "no compiler"
    shown = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    return shown.stdout.partition("\n")[0]


def _build(framework: str, library: Path, ready: Path, command: CompileCommand) -> None:
    if not _has_compiler(command):
        compiler = _command_line(command, Path("output"))[0]
        raise OpsBuildError(
            f"the {framework} ops of horoacc must be compiled once for {_built_for(framework)}, "
            f"but the compiler '{compiler}' was not found; install g++ (or set CXX), or the "
            f"framework for which this installation has compiled ops: {_packed(framework)}"
        )
    folder = library.parent
    print(f"horoacc: building the {framework} ops once, into {folder}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".build-") as scratch:
        output = Path(scratch) / library.name
        line = _command_line(command, output)
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        if done.returncode != 0 or not output.is_file():
            said = (done.stderr or done.stdout).strip() or "it wrote no file"
            raise OpsBuildError(
                f"compiling the {framework} ops failed (exit code {done.returncode}):\n"
                f"{shlex.join(line)}\n{said}"
            )
        _place_both(output, library, ready, framework)


def _place_both(made: Path, library: Path, ready: Path, framework: str) -> None:
    """Copies a library to its place, and then writes the file that names it, and what it is for."""
    # Same folder, so that the renames are atomic: no process ever loads half a library.
    with tempfile.TemporaryDirectory(dir=library.parent, prefix=".build-") as scratch:
        copy, note = Path(scratch) / library.name, Path(scratch) / ready.name
        shutil.copyfile(made, copy)
        note.write_text(f"{library.name}\n{_built_for(framework)}\n")
        for path, target, mode in ((copy, library, 0o755), (note, ready, 0o644)):
            path.chmod(mode)  # whatever the umask is
            with path.open("rb") as file:
                os.fsync(file.fileno())  # a machine that goes down leaves a whole file, or none
            path.replace(target)


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Holds a lock of the file, which the kernel drops if this process dies."""
    deadline = time.monotonic() + _LOCK_SECONDS
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    with open(os.open(path, flags, 0o600), "wb") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise OpsBuildError(
                        f"another process has held {path} for {_LOCK_SECONDS} s"
                    ) from None
                time.sleep(0.05)
        yield
