"""Framework ops are compiled once, by the first process that needs them, and never half."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from horoacc import cache, ops_build
from horoacc.ops_build import OpsBuildError, ensure_built, is_built

# A compiler that counts its runs and takes its time; the "library" is a copy of the source.
COMPILER = """#!/bin/sh
if [ "$1" = --version ]; then echo "slowcc 1.0"; exit 0; fi
echo run >> {runs}
sleep 0.3
while [ $# -gt 0 ]; do
  case $1 in
    -o) out=$2; shift ;;
    *.cc) src=$1 ;;
  esac
  shift
done
if grep -q WRONG $src; then echo "$src: error: WRONG" >&2; exit 1; fi
cp $src $out
"""


class Workshop:
    """A cache, a compiler and one source file."""

    def __init__(self, folder: Path) -> None:
        self.runs = folder / "runs"
        self.runs.touch()
        self.compiler = folder / "slowcc"
        self.compiler.write_text(COMPILER.format(runs=self.runs))
        self.compiler.chmod(0o755)
        self.source = folder / "ops.cc"
        self.source.write_text("int one;")
        self.cache = folder / "cache"

    def build(self, *flags: str, framework: str = "numpy") -> Path:
        return ensure_built(
            framework, [self.source], [str(self.compiler), *flags, str(self.source)]
        )

    def count(self) -> int:
        return len(self.runs.read_text().splitlines())


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    monkeypatch.setenv("HOROACC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("HOROACC_OPS_PREBUILD", raising=False)
    return Workshop(tmp_path)


def test_built_once_with_one_line(workshop: Workshop, capfd: pytest.CaptureFixture[str]) -> None:
    assert not is_built("numpy", [workshop.source])
    library = workshop.build()
    assert library.read_text() == "int one;" and library.parent == workshop.cache
    assert capfd.readouterr().err == (
        f"horoacc: building the numpy ops once, into {workshop.cache}\n"
    )
    assert workshop.build() == library and workshop.count() == 1
    assert is_built("numpy", [workshop.source])
    assert capfd.readouterr().err == ""


def test_the_command_may_be_a_function_of_the_file(workshop: Workshop) -> None:
    library = ensure_built(
        "numpy",
        [workshop.source],
        lambda output: [str(workshop.compiler), "-o", str(output), str(workshop.source)],
    )
    assert library.read_text() == "int one;"


def test_a_build_depends_on_sources_flags_compiler_and_framework(workshop: Workshop) -> None:
    first = workshop.build()
    workshop.source.write_text("int two;")
    assert not is_built("numpy", [workshop.source])
    second = workshop.build()
    third = workshop.build("-O3")
    workshop.compiler.write_text(workshop.compiler.read_text().replace("slowcc 1.0", "slowcc 2"))
    fourth = workshop.build("-O3")
    fifth = workshop.build("-O3", framework="cloudpickle")
    assert len({first, second, third, fourth, fifth}) == 5 and workshop.count() == 5
    assert first.read_text() == "int one;" and second.read_text() == "int two;"
    assert workshop.build() != fourth  # two compilers may share a cache
    workshop.build("-O3")
    assert workshop.count() == 6


def test_sixteen_processes_build_once(workshop: Workshop) -> None:
    program = (
        "import sys; from pathlib import Path; from horoacc.ops_build import ensure_built;"
        f"source = Path({str(workshop.source)!r});"
        f"print(ensure_built('numpy', [source], [{str(workshop.compiler)!r}, str(source)])"
        ".read_text())"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) for _ in range(16)
    ]
    for process in started:
        out, _ = process.communicate(timeout=60)
        assert (process.returncode, out) == (0, b"int one;\n")
    assert workshop.count() == 1


def test_a_killed_build_leaves_no_library(workshop: Workshop) -> None:
    workshop.compiler.write_text(
        workshop.compiler.read_text().replace("cp $src $out", "echo half > $out; kill -9 $PPID")
    )
    program = (
        "from pathlib import Path; from horoacc.ops_build import ensure_built;"
        f"ensure_built('numpy', [Path({str(workshop.source)!r})],"
        f" [{str(workshop.compiler)!r}, {str(workshop.source)!r}])"
    )
    died = subprocess.run([sys.executable, "-c", program], check=False, timeout=60)
    assert died.returncode == -9
    assert not is_built("numpy", [workshop.source]) and not list(workshop.cache.glob("*.so"))
    workshop.compiler.write_text(COMPILER.format(runs=workshop.runs))
    assert workshop.build().read_text() == "int one;"


def test_errors_say_what_to_do(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    workshop.source.write_text("WRONG")
    with pytest.raises(OpsBuildError, match=r"(?s)exit code 1.*slowcc.*error: WRONG"):
        workshop.build()
    with pytest.raises(OpsBuildError, match=r"no-such-compiler.*not found.*install g\+\+"):
        ensure_built("numpy", [workshop.source], ["no-such-compiler"])
    monkeypatch.setenv("HOROACC_CACHE_DIR", "/proc/cache")
    with pytest.raises(OpsBuildError, match="HOROACC_CACHE_DIR"):
        workshop.build()


def test_ops_built_at_installation_come_first(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ops_build, "_PREBUILT", tmp_path / "package")
    monkeypatch.setenv("HOROACC_OPS_PREBUILD", "1")
    library = workshop.build()
    assert library.parent == tmp_path / "package"
    monkeypatch.delenv("HOROACC_OPS_PREBUILD")
    # Where it is used there may be no compiler, and the flags name other folders.
    assert ensure_built("numpy", [workshop.source], ["no-such-compiler", "-I/else"]) == library
    assert workshop.count() == 1


def test_an_installation_takes_what_the_cache_has(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """If it was built by the same compiler with the same flags, wherever the sources lay."""
    monkeypatch.setattr(ops_build, "_ROOTS", (tmp_path / "checkout", tmp_path / "package"))
    cached = workshop.build(f"-I{tmp_path}/checkout/csrc")
    monkeypatch.setattr(ops_build, "_PREBUILT", tmp_path / "package" / "lib")
    monkeypatch.setenv("HOROACC_OPS_PREBUILD", "1")
    library = workshop.build(f"-I{tmp_path}/package/csrc")
    assert library.parent == tmp_path / "package" / "lib" and cached.parent == workshop.cache
    assert library.read_text() == "int one;" and workshop.count() == 1
    cached.unlink()
    monkeypatch.delenv("HOROACC_OPS_PREBUILD")
    assert is_built("numpy", [workshop.source])
    assert ensure_built("numpy", [workshop.source], ["no-such-compiler"]) == library
    for made in library.parent.iterdir():
        made.unlink()
    workshop.build("-O3", f"-I{tmp_path}/package/csrc")
    monkeypatch.setenv("HOROACC_OPS_PREBUILD", "1")
    workshop.cache.chmod(0o777)  # where others may have put something
    workshop.build("-O3", f"-I{tmp_path}/package/csrc")
    assert workshop.count() == 3


def test_a_host_without_a_compiler_takes_what_another_has_built(workshop: Workshop) -> None:
    library = workshop.build()
    assert ensure_built("numpy", [workshop.source], ["no-such-compiler"]) == library
    workshop.source.write_text("int two;")
    with pytest.raises(OpsBuildError, match="no-such-compiler"):
        ensure_built("numpy", [workshop.source], ["no-such-compiler"])


def test_libraries_that_others_may_have_written_are_not_loaded(workshop: Workshop) -> None:
    library = workshop.build()
    (ready,) = workshop.cache.glob("*.ready")
    for path in (library, workshop.cache):
        library.write_text("by another user of the group")
        path.chmod(0o775)
        assert workshop.build() == library and library.read_text() == "int one;"
        assert not path.stat().st_mode & 0o022
    stranger = workshop.cache.parent / "stranger.so"
    stranger.write_text("anything")
    for name in ("../stranger.so", str(stranger)):
        ready.write_text(f"{name}\nnumpy\n")
        assert not is_built("numpy", [workshop.source])


def test_a_cache_of_another_user_is_refused(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop.build()
    owner = workshop.cache.stat().st_uid
    for path in (workshop.cache, *workshop.cache.iterdir()):
        os.chown(path, 12345, -1)
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(OpsBuildError, match=r"belongs to another user.*HOROACC_CACHE_DIR"):
        workshop.build()


def test_the_lock_is_no_link_to_another_file(workshop: Workshop) -> None:
    workshop.cache.mkdir()
    victim = workshop.cache.parent / "victim"
    victim.write_text("kept")
    (workshop.cache / "numpy.lock").symlink_to(victim)
    with pytest.raises(OpsBuildError):
        workshop.build()
    assert victim.read_text() == "kept"


def torch_at(folder: Path, version: str, commit: str = "1a2b", written: str = "#define X") -> Path:
    """The files of a torch that say which headers it has."""
    record = folder / f"torch-{version}.dist-info"
    macros = folder / "torch" / "include" / "torch" / "headeronly" / "macros"
    record.mkdir(parents=True)
    macros.mkdir(parents=True)
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
    (folder / "torch" / "version.py").write_text(
        f"__version__ = '{version}'\ngit_version = '{commit}'\n"
    )
    (macros / "cmake_macros.h").write_text(written)
    return folder


def test_ops_of_one_torch_serve_builds_with_the_same_headers(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A build for CUDA is another version by its suffix only."""
    monkeypatch.setattr(ops_build, "_PREBUILT", tmp_path / "package")

    def with_torch(name: str, *torch: str) -> Path:
        with monkeypatch.context() as patch:
            patch.syspath_prepend(torch_at(tmp_path / name, *torch))
            return ensure_built("torch", [workshop.source], compiler)

    compiler = [str(workshop.compiler), str(workshop.source)]
    with monkeypatch.context() as patch:
        patch.setenv("HOROACC_OPS_PREBUILD", "1")
        library = with_torch("cpu", "9.8.7+cpu")
    compiler = ["no-such-compiler"]
    assert with_torch("cuda", "9.8.7+cu130") == library
    assert with_torch("plain", "9.8.7") == library
    for name, torch in [
        ("newer", ("9.8.8+cpu",)),
        ("commit", ("9.8.7+cpu", "3c4d")),
        ("written", ("9.8.7+cpu", "1a2b", "#define Y")),
    ]:
        with pytest.raises(OpsBuildError, match=r"compiled ops: torch 9\.8\.7 on Python"):
            with_torch(name, *torch)


def test_tensorflow_ops_are_those_of_every_interpreter() -> None:
    """They are shared by all wheels, so no source may be compiled against one Python."""
    sources = [source.read_text() for source in ops_build.sources_of("tensorflow_ops")]
    assert len(sources) > 10
    assert not [text for text in sources if "Python.h" in text or "pybind11" in text]


def test_the_cache_defaults_to_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    for base, wanted in [
        ("", "/home/somebody/.cache/horoacc"),
        ("relative", "/home/somebody/.cache/horoacc"),
        ("/caches", "/caches/horoacc"),
    ]:
        assert cache.folder({"XDG_CACHE_HOME": base}) == Path(wanted)
    assert cache.folder({"XDG_CACHE_HOME": "/caches", "HOROACC_CACHE_DIR": "/c"}) == Path("/c")
