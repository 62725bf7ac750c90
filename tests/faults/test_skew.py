"""Ranks that were started with different settings (row 27), and the clocks that count (row 28)."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from launcher_jobs import Job

CORE = Path(__file__).resolve().parents[2] / "csrc"

PROGRAM = """
import os, sys
rank = os.environ["HOROACC_RANK"]
for word in sys.argv[1:]:
    name, _, values = word.partition("=")
    os.environ[name] = values.split(",")[int(rank) % len(values.split(","))]
import numpy as np
import horoacc as hvd
try:
    hvd.init()
except hvd.errors.ConfigError as error:
    print(error.culprit, error, flush=True)
    sys.exit(3)
arrays = [np.full(1000 + k, hvd.rank() + 1.5, np.float32) for k in range(20)]
handles = [hvd.allreduce_async(a, op=hvd.Sum, name=f"x{k}") for k, a in enumerate(arrays)]
total = sum(rank + 1.5 for rank in range(hvd.size()))
assert all((hvd.synchronize(handle) == total).all() for handle in handles)
print("right", flush=True)
"""


@pytest.mark.parametrize("size", [2, 4, 8])
def test_what_may_differ_is_agreed_on(size: int) -> None:
    with Job() as job:
        result = job.run(
            "--tcp", "-np", str(size), sys.executable, "-c", PROGRAM,
            "HOROACC_FUSION_THRESHOLD=0,67108864", "HOROACC_LAST_ARRIVER_BYTES=0,1048576",
            "HOROACC_WINDOW_BYTES=65536,4096", "HOROACC_REDUCE_PATH=auto,windows",
        )  # fmt: skip
    assert [result.of(rank) for rank in range(size)] == [["right"]] * size


@pytest.mark.parametrize("size", [2, 4, 8])
def test_what_must_not_differ_is_told_to_all(size: int) -> None:
    with Job() as job:
        result = job.run(
            "--tcp", "-np", str(size), sys.executable, "-c", PROGRAM,
            "HOROACC_CONTROL=" + ",".join(["auto"] * (size - 1) + ["tcp"]), code=3,
            HOROACC_GRACE_SECONDS="30",
        )  # fmt: skip
    last = size - 1
    text = f"{last} setting 'control' differs: rank 0 has 'auto', rank {last} has 'tcp'"
    told = [line for rank in range(size) for line in result.of(rank)]
    assert told and set(told) == {text}, result


JUMPING = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
static int real(clockid_t id, struct timespec *time) {
  static int (*next)(clockid_t, struct timespec *);
  if (!next) next = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  return next(id, time);
}
static long jump(void) { /* a day ahead, a day back, four times a second */
  struct timespec steady;
  real(CLOCK_MONOTONIC, &steady);
  return steady.tv_nsec / 250000000 % 2 ? 86400 : -86400;
}
int clock_gettime(clockid_t id, struct timespec *time) {
  const int outcome = real(id, time);
  if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE) time->tv_sec += jump();
  return outcome;
}
int gettimeofday(struct timeval *restrict time, void *restrict zone) {
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  time->tv_sec = exact.tv_sec, time->tv_usec = exact.tv_nsec / 1000;
  return 0;
}
time_t time(time_t *out) {
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  return out ? *out = exact.tv_sec : exact.tv_sec;
}
"""
STEADY = """
import sys, time
import numpy as np
import horoacc as hvd
hvd.init()
began, wall, jumps, steps = time.monotonic(), time.time(), 0, 0
while hvd.allreduce(np.float64(time.monotonic() - began), op=hvd.Min) < 5:
    result = hvd.allreduce(np.full(50_000, hvd.rank() + steps, np.float32), op=hvd.Sum)
    assert (result == sum(range(hvd.size())) + hvd.size() * steps).all()
    jumps += abs(time.time() - wall) > 10_000
    wall, steps = time.time(), steps + 1
    time.sleep(0.01)
assert jumps >= 3, jumps
print("right", flush=True)
"""


@pytest.mark.parametrize("hosts", ["", "each"])
@pytest.mark.parametrize("size", [2, 4, 8])
def test_no_time_limit_follows_a_clock_that_jumps(size: int, hosts: str, tmp_path: Path) -> None:
    (tmp_path / "jumping.c").write_text(JUMPING)
    library = tmp_path / "jumping.so"
    build = ["cc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "jumping.c"), "-ldl"]
    subprocess.run(build, check=True)
    with Job() as job:
        result = job.run(
            "--tcp", "-np", str(size), "env", f"LD_PRELOAD={library}", sys.executable, "-c", STEADY,
            HOROACC_SIMULATED_HOSTS=hosts, HOROACC_HEARTBEAT_TIMEOUT_SECONDS="60",
            HOROACC_STALL_SHUTDOWN_TIME_SECONDS="60", HOROACC_HOST_TIMEOUT_SECONDS="60",
        )  # fmt: skip
    assert [result.of(rank) for rank in range(size)] == [["right"]] * size
    assert result.err == ""


def test_a_clock_that_jumps_is_used_for_stamps_only() -> None:
    wall = re.compile(r"CLOCK_REALTIME|system_clock|gettimeofday|\btime\(nullptr\)|std::time\b")
    users = {
        path.relative_to(CORE).as_posix()
        for path in CORE.rglob("*.[ch]*")
        if wall.search(path.read_text())
    }
    # Stamps of a line of the log, of a record and of a trace.
    stamping = {"base/log.cc", "runtime/trace/telemetry.cc", "runtime/trace/trace_file.cc"}
    assert users == stamping, users
