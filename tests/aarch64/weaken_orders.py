"""Shows that ThreadSanitizer sees an order of the data paths that is too weak for aarch64.

tests/cpp/execute/shared_paths_test.cc runs the paths with ranks as threads. This program compiles
it with ThreadSanitizer and the files of the paths: as they are, when nothing may be reported; then
once for each row of WEAKENED, with that access made relaxed, when a race has to be reported. Any
machine will do: the sanitizer knows the orders of C++, not those of the processor.

    python tests/aarch64/weaken_orders.py
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "weakened"
TEST = "tests/cpp/execute/shared_paths_test.cc"
SHARED = "csrc/execute/shared_memory/"
LINKS = "csrc/transport/data/shm/"
SOURCES = [
    TEST,
    *(
        SHARED + name
        for name in ("two_phase.cc", "exchange.cc", "direct_slices.cc", "window_ring.cc")
    ),
    *(LINKS + name for name in ("shm_data.cc", "shm_exchange.cc")),
    *("csrc/transport/memory/" + name for name in ("arena.cc", "segment.cc")),
    "csrc/transport/data/data_links.cc",
    "csrc/transport/wake/doorbell.cc",
    "csrc/transport/bootstrap/inproc.cc",
    "csrc/transport/net/socket.cc",
    "csrc/base/result.cc",
]
# The sanitizer is to see each access of a sum: the kernels have their own tests.
PLAIN_SUM = """
#include "execute/kernels/reduce.h"
void horoacc::Reduce(const ReduceJob& job) {
  for (size_t k = 0; k < job.count; ++k) {
    float sum = 0;
    for (const void* source : job.sources) sum += static_cast<const float*>(source)[k];
    for (void* destination : job.destinations) static_cast<float*>(destination)[k] = sum;
  }
}
"""
# File, access, and the test that shows it.
WEAKENED = [
    ("window_ring.cc", "exposed.store(exposed_, std::memory_order_release)", "two_phases"),
    ("window_ring.cc", "consumed.store(consumed_, std::memory_order_release)", "exchanges"),
    ("window_ring.h", "rank(r).exposed.load(std::memory_order_acquire)", "exchanges"),
    ("window_ring.h", "rank(r).consumed.load(std::memory_order_acquire)", "exchanges"),
    ("two_phase.cc", "done.fetch_add(1, std::memory_order_acq_rel)", "two_phases"),
    ("two_phase.cc", "done.load(std::memory_order_acquire)", "two_phases"),
    ("direct_slices.cc", "fetch_add(1, std::memory_order_acq_rel)", "direct_slices"),
    ("direct_slices.cc", "value.load(std::memory_order_acquire)", "direct_slices"),
    ("shm_exchange.cc", "written.store(begin + count, std::memory_order_release)", "links"),
    ("shm_exchange.cc", "ring.written.load(std::memory_order_acquire)", "links"),
    ("shm_data.cc", "taken.store(++released_, std::memory_order_release)", "links"),
    ("shm_data.cc", "slot.taken.load(std::memory_order_acquire)", "links"),
]
FLAGS = ["-std=c++20", "-O1", "-g1", "-fsanitize=thread", "-Wno-tsan"]
TURNS = 20  # a race is reported only by a run in which the two accesses come close


def compile_all(sources: list[str], first: Path, into: Path) -> dict[str, Path]:
    """Compiles sources against headers of `first`, then those of the tree.

    Args:
        sources: Relative to the root; one that lies in `first` is taken from there.
        first: A folder with changed files, by their place under csrc/.
        into: Where the objects go.

    Returns:
        Objects, by source.
    """
    into.mkdir(parents=True, exist_ok=True)
    objects = {}
    for source in sources:
        changed = first / source.removeprefix("csrc/")
        path = changed if changed.is_file() else ROOT / source
        objects[source] = into / (Path(source).stem + ".o")
        includes = [f"-I{first}", f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'tests/cpp'}"]
        subprocess.run(["g++", *FLAGS, *includes, "-c", path, "-o", objects[source]], check=True)
    return objects


def link(objects: list[Path], program: Path) -> None:
    """Links a program; what only a job of several processes calls is left out."""
    some = "-Wl,--unresolved-symbols=ignore-all"
    subprocess.run(
        ["g++", "-fsanitize=thread", "-no-pie", some, *objects, "-o", program],
        check=True,
        stderr=subprocess.DEVNULL,
    )


def reports_race(program: Path, test: str) -> bool:
    """Runs a test under ThreadSanitizer, whose memory no random layout may occupy.

    Raises:
        RuntimeError: The test failed in another way.
    """
    command = ["setarch", os.uname().machine, "-R", str(program), test]
    environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    if "WARNING: ThreadSanitizer: data race" in run.stderr:
        return True
    if run.returncode != 0 and "shared_paths_test.cc" not in run.stderr:
        raise RuntimeError(f"{test}: {run.stderr[-500:]}")
    return False


def main() -> int:
    """Returns 1 if an order is missing in the tree, or a weakened one is not noticed."""
    shutil.rmtree(BUILD, ignore_errors=True)
    BUILD.mkdir(parents=True)
    (BUILD / "plain_sum.cc").write_text(PLAIN_SUM)
    objects = compile_all(SOURCES, BUILD / "none", BUILD / "as_is")
    objects |= compile_all(
        [str((BUILD / "plain_sum.cc").relative_to(ROOT))], BUILD, BUILD / "as_is"
    )
    link(list(objects.values()), BUILD / "as_is" / "test")
    failed = False
    for test in sorted({test for _, _, test in WEAKENED}):
        clean = not any(reports_race(BUILD / "as_is" / "test", test) for _ in range(3))
        print(f"{'clean ' if clean else 'RACE  '} {test}", flush=True)
        failed |= not clean
    for name, access, test in WEAKENED:
        place = next(folder + name for folder in (SHARED, LINKS) if (ROOT / folder / name).exists())
        text = (ROOT / place).read_text()
        if text.count(access) != 1:
            raise RuntimeError(f"{place} has '{access}' {text.count(access)} times, not once")
        changed = BUILD / "changed"
        shutil.rmtree(changed, ignore_errors=True)
        copy = changed / place.removeprefix("csrc/")
        copy.parent.mkdir(parents=True)
        copy.write_text(
            text.replace(access, re.sub(r"memory_order_\w+", "memory_order_relaxed", access))
        )
        again = [place] if name.endswith(".cc") else [s for s in SOURCES if s.startswith(SHARED)]
        weak = objects | compile_all(again, changed, BUILD / "weak")
        link(list(weak.values()), BUILD / "weak" / "test")
        caught = any(reports_race(BUILD / "weak" / "test", test) for _ in range(TURNS))
        print(f"{'caught' if caught else 'MISSED'} {place}: {access}", flush=True)
        failed |= not caught
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
