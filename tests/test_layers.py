"""The rules of the tree: include directions, names, and the size of files and folders."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = (
    "base transport schedule execute fuse negotiate queue runtime api".split()  # noqa: SIM905
)
BANNED = {"manager", "managers", "helper", "helpers", "util", "utils", "common", "impl", "v2"}
WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
FRAMEWORKS = {"torch", "tensorflow", "keras", "mpi4py", "yaml"}
FRONTENDS = {"torch", "tensorflow", "keras"}
FOLDERS = ("csrc", "torch_ops", "tensorflow_ops", "horoacc", "launcher", "tests", "benchmarks")
SOURCES = {".cc", ".cu", ".cuh", ".h", ".py", ".pyi"}
MOST_FILES, MOST_LINES = 40, 500
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def cpp_files(folder: str) -> list[Path]:
    suffixes = (".cc", ".cu", ".h")
    return sorted(path for path in (ROOT / folder).rglob("*") if path.suffix in suffixes)


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def banned(identifier: str) -> set[str]:
    """The words of a snake_case or CamelCase name that say nothing."""
    return {word.lower() for word in WORD.findall(identifier)} & BANNED


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def includes(path: Path) -> list[tuple[str, str]]:
    """Kind (`<` or `"`) and target of every include."""
    return INCLUDE.findall(path.read_text())


def faulty_includes(path: Path, room: str) -> list[str]:
    """Includes of a file in a room of csrc/ that break the rule."""
    faults = []
    for kind, target in includes(path):
        if kind == "<":
            continue
        other = target.split("/")[0]
        if other not in ROOMS:
            faults.append(f'"{target}" is not relative to csrc/')
        elif ROOMS.index(other) > ROOMS.index(room):
            faults.append(f'"{target}" is in a room above {room}/')
    return faults


@pytest.mark.parametrize("path", cpp_files("csrc"), ids=name)
def test_rooms_include_only_lower_rooms(path: Path) -> None:
    room = path.relative_to(ROOT / "csrc").parts[0]
    assert room in ROOMS
    assert faulty_includes(path, room) == []


def test_the_prover_knows_schedules_by_their_steps_alone() -> None:
    allowed = {"schedule/schedule.h", "schedule/step.h"}
    files = cpp_files("csrc/schedule/prove")
    assert files
    for path in files:
        targets = {target for _, target in includes(path) if target.startswith("schedule/")}
        own = {target for target in targets if target.startswith("schedule/prove/")}
        assert targets - own <= allowed, name(path)
    for path in cpp_files("csrc/schedule/generate"):
        assert not [t for _, t in includes(path) if t.startswith("schedule/prove/")], name(path)


def test_bindings_include_only_the_c_header() -> None:
    # Or what is written over it, and includes nothing else of the core.
    over = {"api/engine_ref.h", "api/known_engines.h", "api/python_engine_calls.h"}
    contract = {"api/horoacc.h"} | over
    shared = [path for path in cpp_files("csrc/api") if f"api/{path.name}" in over]
    assert len(shared) == len(over)
    for path in shared:
        assert {target for kind, target in includes(path) if kind == '"'} == {"api/horoacc.h"}
    for folder in ("torch_ops", "tensorflow_ops"):
        for path in cpp_files(folder):
            own = {file.name for file in cpp_files(folder)}
            targets = {target for _, target in includes(path) if target.split("/")[0] in ROOMS}
            quoted = {target for kind, target in includes(path) if kind == '"'}
            assert targets <= contract, name(path)
            assert {target.split("/")[-1] for target in quoted if "/" not in target} <= own
    module = [path for path in cpp_files("csrc/api") if path.name.startswith("python")]
    own = {f"api/{path.name}" for path in module}
    assert "api/python_engine.h" in own
    for path in module:
        assert {t for kind, t in includes(path) if kind == '"'} <= {"api/horoacc.h"} | own


def test_only_the_plugin_knows_mpi_and_nobody_a_framework() -> None:
    for path in cpp_files("csrc"):
        targets = [target for _, target in includes(path)]
        if "mpi/plugin" not in str(path):
            assert "mpi.h" not in targets, name(path)
        outside = ("torch/", "ATen/", "c10/", "tensorflow/")
        assert not [target for target in targets if target.startswith(outside)], name(path)


def test_only_the_cuda_plugin_knows_cuda() -> None:
    """So that everything else compiles where there is no toolkit."""
    toolkit = ("cuda.h", "cuda_runtime", "cuda_fp16", "cuda_bf16", "nccl")
    launch = "execute/cuda/plugin/launch.h"
    for path in cpp_files("csrc"):
        if path.suffix == ".cu" or name(path) == f"csrc/{launch}":
            continue
        targets = [target for _, target in includes(path)]
        assert not [target for target in targets if target.startswith((*toolkit, launch))], name(
            path
        )


def test_no_mutable_globals_or_environment_in_the_core() -> None:
    mutable = re.compile(r"^\s*(?:static|thread_local|inline)\s+(?!constexpr|const\b)[^()]*[;={]")
    for path in cpp_files("csrc"):
        for count, line in enumerate(path.read_text().splitlines(), 1):
            code = line.partition("//")[0]
            assert not mutable.match(code), f"{name(path)}:{count}: {line.strip()}"
            assert "getenv(" not in code, f"{name(path)}:{count}: {line.strip()}"


def top_level_imports(path: Path) -> set[str]:
    """What importing this file imports: nothing under TYPE_CHECKING or in a function."""
    found: set[str] = set()

    def visit(body: list[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module)
                found.update(f"{node.module}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                visit(node.orelse)
            elif isinstance(node, (ast.If, ast.Try, ast.With, ast.ClassDef)):
                visit(node.body)
                visit(getattr(node, "orelse", []))

    visit(ast.parse(path.read_text()).body)
    return found


def test_python_depends_one_way() -> None:
    """The NumPy frontend and the launcher need no framework; the launcher not even the core."""
    for path in python_files("horoacc", "launcher"):
        parts = path.relative_to(ROOT).parts
        imports = top_level_imports(path)
        roots = {module.split(".")[0] for module in imports}
        if parts[0] == "launcher":
            assert not roots & FRAMEWORKS, name(path)
            assert not [m for m in imports if m.startswith(("horoacc._core", "horoacc.basics"))]
        elif not FRONTENDS & set(parts[1:3]):  # estimators of Spark are of a framework, too
            assert not roots & FRAMEWORKS, name(path)
            framework_side = tuple(f"horoacc.{frontend}" for frontend in FRONTENDS)
            assert not [m for m in imports if m.startswith(framework_side)], name(path)


def test_no_banned_names() -> None:
    folders = ("csrc", "torch_ops", "tensorflow_ops", "tests/cpp")
    files = [path for folder in folders for path in cpp_files(folder)]
    files += python_files("horoacc", "launcher", "tests", "examples", "benchmarks")
    for path in files:
        for part in path.relative_to(ROOT).parts:
            assert not banned(part), f"{name(path)}: '{part}' names nothing"
    for path in python_files("horoacc", "launcher"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                theirs = node.name == "saveImpl"  # pyspark's MLWriter calls it so
                assert theirs or not banned(node.name), f"{name(path)}:{node.lineno}: {node.name}"
    declared = re.compile(r"^\s*(?:class|struct|enum class|namespace)\s+(\w+)", re.MULTILINE)
    for folder in folders:
        for path in cpp_files(folder):
            for word in declared.findall(path.read_text()):
                assert not banned(word), f"{name(path)}: {word}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_files_and_folders_stay_small(folder: str) -> None:
    sources = [path for path in (ROOT / folder).rglob("*") if path.suffix in SOURCES]
    assert sources
    for path, count in Counter(path.parent for path in sources).items():
        assert count <= MOST_FILES, f"{name(path)} holds {count} source files"
    for path in sources:
        lines = path.read_bytes().count(b"\n")
        assert lines <= MOST_LINES, f"{name(path)} has {lines} lines"


def test_nothing_of_mpi4pys_unpickles() -> None:
    """Its lower-case calls do, and nothing seals what they carry."""
    calls = re.compile(
        r"\bcomm\.(bcast|gather|allgather|scatter|alltoall|reduce|allreduce|s?recv)\("
    )
    files = python_files("horoacc", "launcher")
    assert files and not [name(path) for path in files if calls.search(path.read_text())]
