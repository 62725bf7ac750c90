"""What `horoaccrun doctor` finds on one host: limits, memory, cores, and the kernel's calls.

The needs of a rank were measured: docs/doctor.md has the figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from horoacc.launcher.doctor.findings import Finding, Level
from horoacc.launcher.doctor.hosts import Seen
from horoacc.settings import Value

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30
# Of one rank: descriptors of its own, for each rank of its host, and for each of another host.
_DESCRIPTORS, _NEAR, _FAR = 24, 3, 9
_USUAL_DESCRIPTORS = 1024  # data loaders need some for each worker and tensor under way
_THREADS, _LEAST_THREADS = 32, 6
_MEMORY, _LEAST_MEMORY = 512 * _MIB, 64 * _MIB
_SPACE, _SPACE_RANK = 4 * _GIB, 1280 * _MIB  # of addresses beside the arenas, the 2nd for a rank
_SHM = 64 * _MIB  # what containers have by default
_SHM_RANK = 16 * _MIB
_RAISE = "raise it with `ulimit -{0}` where the job starts, in /etc/security/limits.d, for sshd in "
_RAISE += "its systemd unit (Limit{1}=), in a container with --ulimit {2}"


def judge(host: Seen, size: int, values: Mapping[str, Value]) -> Iterator[Finding]:
    """The findings about one host that was reached.

    Args:
        host: The host.
        size: The job's number of ranks.
        values: The settings, by key.
    """
    yield from _limits(host, size, values)
    yield _shm(host)
    yield _memory(host)
    yield _cores(host)
    yield _pids(host)
    yield from _kernel(host)


def _limits(host: Seen, size: int, values: Mapping[str, Value]) -> Iterator[Finding]:
    soft: dict[str, int] = host.facts["limits"]
    locked, open_files, space = soft["MEMLOCK"], soft["NOFILE"], soft["AS"]
    if locked >= 0 and host.facts["devices"]["rdma"]:
        told = f"{_bytes(locked)}, too little for {', '.join(host.facts['devices']['rdma'])}"
        why = ""
    else:
        why = "" if locked < 0 else "; only RDMA locks memory, and there is no adapter for it"
        told = _bytes(locked) + why
    level: Level = "ok" if locked < 0 or (why and locked >= 64 * _KIB) else "warning"
    advice = _RAISE.format("l unlimited", "MEMLOCK", "memlock=-1") if level != "ok" else ""
    yield Finding("memlock", level, host.name, told, advice)

    need = _DESCRIPTORS + _NEAR * host.ranks + _FAR * (size - host.ranks)
    told = f"{_count(open_files)} descriptors; a rank of this job needs about {need}"
    level = _level(open_files, need, max(_USUAL_DESCRIPTORS, 2 * need))
    advice = _RAISE.format("n 65536", "NOFILE", "nofile=65536") if level != "ok" else ""
    yield Finding("nofile", level, host.name, told, advice)

    need = _SPACE + _SPACE_RANK * host.ranks
    if values["arena"] != "off":
        need += host.ranks * (int(values["arena_bytes"]) or host.facts["memory"]["MemTotal"])
    told = f"{_bytes(space)}; a rank of this job reserves {_bytes(need)}"
    level = _level(space, need, need)
    advice = "`ulimit -v unlimited` where the job starts, or smaller arenas: HOROACC_ARENA_BYTES, "
    advice += "or HOROACC_ARENA=off"
    yield Finding("address space", level, host.name, told, advice if level != "ok" else "")


def _shm(host: Seen) -> Finding:
    shm: dict[str, int] = host.facts["shm"]
    if not shm:
        advice = "mount a tmpfs there: MPI and PyTorch's data loaders need it"
        return Finding("shared memory", "warning", host.name, "there is no /dev/shm", advice)
    told = f"/dev/shm has {_bytes(shm['size'])}, {_bytes(shm['free'])} free"
    need = max(_SHM + 1, _SHM_RANK * host.ranks)
    if shm["free"] >= need:
        return Finding("shared memory", "ok", host.name, f"{told}; arenas need none of it (memfd)")
    advice = "harmless for arenas (memfd), not for MPI, NCCL and PyTorch's data loaders: start the "
    advice += (
        f"container with --shm-size={max(1, 2 * need >> 30)}g or --ipc=host, or empty /dev/shm"
    )
    return Finding("shared memory", "warning", host.name, told, advice)


def _memory(host: Seen) -> Finding:
    memory, group = host.facts["memory"], host.facts["cgroup"]
    total, left = memory["MemTotal"], memory["MemAvailable"]
    told = f"{_bytes(left)} free of {_bytes(total)}"
    advice = f"start fewer ranks than {host.ranks} there, or end what uses the memory"
    if "memory" in group:
        within = int(group["memory"] - group.get("memory_used", 0))
        told += f"; the cgroup's limit is {_bytes(group['memory'])}, {_bytes(within)} of it unused"
        if within < left:
            left = within
            advice = f"start fewer ranks than {host.ranks} there, or raise the limit (docker run "
            advice += "--memory, resources.limits.memory, memory.max): beyond it ranks are killed"
    level = _level(left, host.ranks * _LEAST_MEMORY, host.ranks * _MEMORY)
    told += f"; {host.ranks} {_ranks(host)}"
    return Finding("memory", level, host.name, told, advice if level != "ok" else "")


def _cores(host: Seen) -> Finding:
    cores, quota = host.facts["cores"], host.facts["cgroup"].get("cores", 1 << 30)
    told = f"{host.ranks} {_ranks(host)} on {cores} cores"
    advice = "the ranks will work and take turns: start fewer there, or give the job more cores"
    if quota < cores:
        told += f", of whose time the cgroup grants {quota:g}"
        advice += " (docker run --cpus, resources.limits.cpu, cpu.max)"
    level: Level = "ok" if host.ranks <= min(cores, quota) else "warning"
    return Finding("cores", level, host.name, told, advice if level != "ok" else "")


def _pids(host: Seen) -> Finding:
    own, group = host.facts["limits"]["NPROC"], host.facts["cgroup"]
    need = host.ranks * _THREADS + host.facts["cores"]
    least = host.ranks * _LEAST_THREADS
    told = f"{_count(own)} a user"
    left = own
    advice = _RAISE.format(f"u {max(4096, 2 * need)}", "NPROC", f"nproc={max(4096, 2 * need)}")
    if "pids" in group:
        within = int(group["pids"] - group.get("pids_used", 0))
        told += f", {group['pids']:.0f} in the cgroup, {within} of them unused"
        if left < 0 or within < left:
            left = within
            advice = "raise it: docker run --pids-limit, the kubelet's podPidsLimit, pids.max"
    told = f"processes and threads: {told}; this job has up to {need} here"
    level = _level(left, least, need)
    return Finding("processes", level, host.name, told, advice if level != "ok" else "")


def _kernel(host: Seen) -> Iterator[Finding]:
    kernel = host.facts["kernel"]
    filtered = ", under a seccomp filter" if kernel["seccomp"] == 2 else ""
    name = f"Linux {kernel['release']} {kernel['machine']}{filtered}"
    if kernel["memfd"]:
        told = f"memfd_create: {kernel['memfd']} ({name})"
        advice = "ranks of a host cannot share memory without it: use a newer container runtime or "
        advice += "a seccomp profile that allows memfd_create"
        yield Finding("kernel", "error", host.name, told, advice)
    if kernel["pidfd"]:
        told = f"pidfd_open: {kernel['pidfd']} ({name})"
        advice = "without it a process that a rank has started may hide its death from the others: "
        advice += "Linux 5.3 has it, and a seccomp profile may forbid it (docs/faults.md)"
        yield Finding("kernel", "warning", host.name, told, advice)
    if not kernel["memfd"] and not kernel["pidfd"]:
        scope = kernel["ptrace_scope"] or "none"
        copies = kernel["cma"] or "works"
        told = f"{name}: memfd and pidfd work; for MPI's single copies: process_vm_readv {copies}, "
        yield Finding("kernel", "ok", host.name, f"{told}Yama's ptrace scope {scope}")


def _level(value: float, least: float, wanted: float) -> Level:
    if value < 0 or value >= wanted:
        return "ok"
    return "error" if value < least else "warning"


def _ranks(host: Seen) -> str:
    return "rank" if host.ranks == 1 else "ranks"


def _count(number: int) -> str:
    return "unlimited" if number < 0 else str(number)


def _bytes(number: float) -> str:
    if number < 0:
        return "unlimited"
    for unit, name in ((_GIB, "GiB"), (_MIB, "MiB"), (_KIB, "KiB")):
        if number >= unit:
            return f"{number / unit:.3g} {name}"
    return f"{number:.0f} bytes"
