"""The contents of an installation, which needs no framework and no MPI."""

from __future__ import annotations

import re
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from bare import ROOT, run

# A finder that makes an import fail as if the distribution were not there.
BLOCK = """
import importlib.abc, sys
class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "tensorflow", "keras", "mpi4py"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""


@pytest.mark.timeout(600)
def test_the_files_of_a_wheel(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for expected in (
        "horoacc/__init__.py",
        "horoacc/py.typed",
        "horoacc/lib/libhoroacc.so",
        "horoacc/lib/libhoroacc_mpi_openmpi.so",
        "horoacc/lib/libhoroacc_mpi_mpich.so",
        "horoacc/launcher/main.py",
        "horoacc/launcher/shim.py",
        "horoacc/launcher/environment/__init__.py",
        "horoacc/dropin/startup/sitecustomize.py",
        "horoacc/_sources/csrc/api/horoacc.h",
    ):
        assert expected in names
    assert any(name.startswith("horoacc/_core.") and name.endswith(".so") for name in names)
    tops = {name.split("/")[0] for name in names}
    assert len(tops) == 2 and "horoacc" in tops, "a top-level name that is not ours"
    for ops in ("torch_ops", "tensorflow_ops"):
        sources = {f"horoacc/_sources/{ops}/{path.name}" for path in (ROOT / ops).glob("*.cc")}
        assert sources and sources <= set(names)


@pytest.mark.timeout(600)
def test_hard_dependencies_are_two(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith("METADATA")]
        lines = archive.read(metadata).decode().splitlines()
    needs = [line.partition(": ")[2] for line in lines if line.startswith("Requires-Dist")]
    hard = {need.split(">")[0] for need in needs if "extra ==" not in need}
    assert hard == {"numpy", "cloudpickle"}
    extras = {line.partition(": ")[2] for line in lines if line.startswith("Provides-Extra")}
    assert extras == {
        "torch", "tensorflow", "mpi", "ray", "spark", "metrics", "top", "examples", "dev"
    }  # fmt: skip


@pytest.mark.timeout(600)
def test_libraries_name_no_framework_no_mpi_path_and_no_place_of_the_build(
    installed: Path,
) -> None:
    for library in (installed / "horoacc").rglob("*.so"):
        if library.parent.name == "ops":
            continue  # a framework's ops name their framework
        shown = run("readelf", "-d", str(library), cwd=installed)
        needed = [line for line in shown.splitlines() if "NEEDED" in line]
        mpi = [line for line in needed if "libmpi" in line]
        assert bool(mpi) == library.name.startswith("libhoroacc_mpi_"), library
        assert not [line for line in needed if "torch" in line or "tensorflow" in line]
        assert not [line for line in needed if "[/" in line], "needed by a path"
        paths = [line for line in shown.splitlines() if "RUNPATH" in line or "RPATH" in line]
        assert all("[$ORIGIN" in line for line in paths), paths
        # As docs/install.md says: it loads beside the libstdc++ of g++ 11, and so on RHEL 9.
        versions = run("readelf", "--version-info", str(library), cwd=installed)
        newer = re.findall(r"GLIBCXX_3\.4\.(?:[3-9]\d)", versions)
        assert not newer, (library, newer)


@pytest.mark.timeout(600)
def test_works_with_no_framework_and_no_mpi4py(installed: Path) -> None:
    program = BLOCK + (
        "import horoacc as hvd, numpy as np\n"
        "assert hvd.__file__.startswith(sys.argv[1]), hvd.__file__\n"
        "hvd.init()\n"
        "print(hvd.rank(), hvd.size(), hvd.allreduce(np.arange(3.0), op=hvd.Sum).tolist())\n"
        "hvd.shutdown()\n"
        "try:\n    import horoacc.torch\nexcept ImportError as error:\n    print(error.name)\n"
    )
    shown = run(
        sys.executable, "-c", program, str(installed), cwd=installed, PYTHONPATH=str(installed)
    )
    assert shown == "0 1 [0.0, 1.0, 2.0]\ntorch\n"


@pytest.mark.timeout(600)
def test_torch_ops_of_an_installation_need_no_compiler(installed: Path, tmp_path: Path) -> None:
    program = (
        "import horoacc.torch as hvd, torch\n"
        "from horoacc.torch import _ops\n"
        "hvd.init()\n"
        "layer = torch.nn.Linear(3, 2)\n"
        "sgd = torch.optim.SGD(layer.parameters(), lr=0.1)\n"
        "optimizer = hvd.DistributedOptimizer(sgd, layer.named_parameters())\n"
        "layer(torch.ones(1, 3)).sum().backward()\n"
        "optimizer.step()\n"
        "print(_ops.library()._name, optimizer._gradients.native is not None)\n"
    )
    launch = (sys.executable, "-m", "horoacc.launcher.main", "--tcp", "-np", "2")
    shown = run(
        *(*launch, sys.executable, "-W", "error::UserWarning", "-c", program),
        cwd=installed, PYTHONPATH=str(installed), CXX="false", HOROACC_CACHE_DIR=str(tmp_path),
    )  # fmt: skip
    (ops,) = (installed / "horoacc" / "lib" / "ops").glob("torch-*.so")
    assert sorted(shown.splitlines()) == [f"[{rank}] {ops} True" for rank in range(2)]
    assert not list(tmp_path.iterdir())


@pytest.mark.timeout(600)
def test_editable_installation(tmp_path: Path) -> None:
    """`pip install -e .` gives the checkout itself, and the command."""
    run(
        *(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--ignore-installed"),
        *("--no-build-isolation", "--prefix", str(tmp_path), "-e", str(ROOT)),
        cwd=ROOT,
        HOROACC_TESTS="ON",
    )
    site = sysconfig.get_path("purelib", vars={"base": str(tmp_path)})
    # This environment's own installation must not be what answers: its folder is on the path for
    # NumPy's sake, but its .pth files are not read.
    program = (
        "import site, sys\n"
        f"site.addsitedir({site!r})\n"
        f"sys.path.append({sysconfig.get_path('purelib')!r})\n"
        "import horoacc as hvd, horoacc.launcher, numpy as np\n"
        "hvd.init()\n"
        "print(hvd.__file__, horoacc.launcher.__file__)\n"
        "print(hvd.allreduce(np.ones(2), op=hvd.Sum).tolist())\n"
    )
    shown = run(sys.executable, "-I", "-S", "-c", program, cwd=tmp_path).splitlines()
    files = [ROOT / "horoacc" / "__init__.py", ROOT / "launcher" / "__init__.py"]
    assert shown == [f"{files[0]} {files[1]}", "[1.0, 1.0]"]
    assert (tmp_path / "bin" / "horoaccrun").is_file()


@pytest.mark.timeout(600)
def test_the_launcher_of_an_installation(installed: Path) -> None:
    command = [sys.executable, "-m", "horoacc.launcher.main"]
    shown = run(*command, "--check-build", cwd=installed, PYTHONPATH=str(installed))
    for line in ("[X] TCP", "[X] MPI", "[X] Open MPI", "[X] MPICH"):
        assert line in shown
    program = (
        "import horoacc as hvd, numpy as np; hvd.init();"
        "print(hvd.allreduce(np.ones(1), op=hvd.Sum).tolist())"
    )
    shown = run(
        *(*command, "--tcp", "-np", "2", sys.executable, "-c", program),
        cwd=installed,
        PYTHONPATH=str(installed),
    )
    assert sorted(shown.splitlines()) == ["[0] [2.0]", "[1] [2.0]"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("flavour", ["openmpi", "mpich"])
def test_two_ranks_over_mpi_without_a_framework(installed: Path, flavour: str) -> None:
    """`pip install horoacc[mpi]` gives NumPy, mpi4py and an MPI whose ABI has a plug-in."""
    prefix = Path(sys.prefix) if flavour == "openmpi" else ROOT / ".mpich"
    mpirun = prefix / "bin" / "mpirun"
    if not mpirun.exists():
        pytest.skip(f"{flavour}'s mpirun is not installed")
    program = BLOCK.replace(', "mpi4py"', "") + (
        "import horoacc as hvd, numpy as np, re\n"
        "from horoacc import basics\n"
        "hvd.init()\n"
        "total = hvd.allreduce(np.arange(3.0), op=hvd.Sum).tolist()\n"
        "maps = open('/proc/self/maps').read()\n"
        "plug_ins = sorted(set(re.findall(r'/\\S*horoacc_mpi_\\S*', maps)))\n"
        "print(hvd.size(), total, basics.bootstrap(), *plug_ins, 'torch' in sys.modules)\n"
    )
    shown = run(
        *(sys.executable, "-m", "horoacc.launcher.main", "--mpirun", str(mpirun), "-np", "2"),
        *(sys.executable, "-c", program),
        cwd=installed,
        PYTHONPATH=str(installed),
    )
    plug_in = installed / "horoacc" / "lib" / f"libhoroacc_mpi_{flavour}.so"
    said = f"2 [0.0, 2.0, 4.0] mpi {plug_in} False"
    assert sorted(shown.splitlines()) == [f"[{rank}] {said}" for rank in range(2)]
