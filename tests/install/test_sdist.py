"""The sdist has every file that a build from it reads; `make test-wheel` builds from it."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import ninja
import pytest
from bare import ROOT, run

NATIVE = ROOT / "build" / f"cmake-{sysconfig.get_config_var('SOABI')}"
MADE = ("build/", ".venv/", ".mpich/")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of an sdist of the checkout, by their paths in the tree."""
    folder = tmp_path_factory.mktemp("sdist")
    make = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
    run(sys.executable, "-c", make, str(folder), cwd=ROOT)
    (made,) = folder.glob("horoacc-*.tar.gz")
    with tarfile.open(made) as archive:
        return {
            member.name.partition("/")[2]: archive.extractfile(member).read()
            for member in archive.getmembers()
            if member.isfile()
        }


def test_it_has_what_the_compiler_read(files: dict[str, bytes]) -> None:
    """By the dependencies that ninja has recorded in `make build`, and by its graph."""
    tool = [str(Path(ninja.BIN_DIR) / "ninja"), "-C", str(NATIVE), "-t"]
    read = set()
    for listed in (["deps"], ["inputs", "all"]):
        done = subprocess.run([*tool, *listed], capture_output=True, text=True, check=True)
        for line in done.stdout.splitlines():
            path = Path(re.sub(r"^ninja: .*|\\", "", line.strip()))
            if line.strip() and (NATIVE / path).resolve().is_relative_to(ROOT):
                read.add(str((NATIVE / path).resolve().relative_to(ROOT)))
    # A file that was deleted since may still be recorded.
    read = {name for name in read if not name.startswith(MADE) and (ROOT / name).is_file()}
    assert len(read) > 300
    assert not {name for name in read if files.get(name) != (ROOT / name).read_bytes()}


@pytest.mark.timeout(600)
def test_it_has_what_a_wheel_holds(files: dict[str, bytes], wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if not name.startswith("horoacc/") or re.search(r"\.so$|/$|^horoacc/lib/", name):
                continue
            inside = re.sub(r"^horoacc/(launcher/)", r"\1", name)
            inside = re.sub(r"^horoacc/_sources/", "", inside)
            assert files.get(inside) == archive.read(name), name
    for name in ("pyproject.toml", "setup.py", "CMakeLists.txt", "README.md", "Makefile"):
        assert files[name] == (ROOT / name).read_bytes()
