"""`horoaccrun k8s manifest`: an Indexed Job and what it needs, as YAML for `kubectl apply -f -`."""

from __future__ import annotations

import argparse
import json
import re
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

from horoacc.launcher.arguments import parse_arguments
from horoacc.launcher.kubernetes.pods import ALIVE

PORT, MASTER_PORT = 29400, 29500
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?")
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|[kMGTPE]|[KMGTPE]i)?")
_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_FORMS = {
    "image": re.compile(r"\S+"), "namespace": re.compile(_LABEL), "gpus": re.compile("[1-9][0-9]*"),
    "secret": re.compile(rf"{_LABEL}(\.{_LABEL})*"),
    "cpu": _QUANTITY, "memory": _QUANTITY, "shared_memory": _QUANTITY,
}  # fmt: skip
# Seconds after which a pod whose loop has stopped is ended.
_SILENT = 120
_PROBE = f"test $(($(date +%s) - $(stat -c %Y {ALIVE}))) -lt {_SILENT}"
# The ranks' time of grace ends before the pod's.
_SPARE_SECONDS = 15


def main(arguments: Sequence[str]) -> int:
    """Prints a manifest.

    Args:
        arguments: The command line behind `k8s`.

    Raises:
        SystemExit: With code 2 after a line that names the error; with 0 after --help.
    """
    parser = argparse.ArgumentParser(
        prog="horoaccrun k8s manifest",
        usage="horoaccrun k8s manifest --name NAME --image IMAGE --pods N [flags] -- "
        "-np N [horoaccrun's flags] command [arguments]",
        description="Prints a Secret, a Service and an Indexed Job for `kubectl apply -f -`.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("manifest", choices=["manifest"], help="What to print.")
    add("--name", required=True, help="The Job's name, and that of what it needs.")
    add("--image", required=True, help="An image with HoroACC and the script.")
    add("--pods", type=int, required=True, metavar="N", help="Number of pods.")
    add("--namespace", help="Its namespace; without it, kubectl's.")
    add("--secret", metavar="NAME", help="A Secret that is there, with a key 'secret'.")
    add("--cpu", help="Cores of a pod, as Kubernetes writes them: 4, 500m.")
    add("--memory", help="Memory of a pod: 16Gi. Shared memory is part of it.")
    add("--gpus", type=int, metavar="N", help="NVIDIA GPUs of a pod.")
    add("--shared-memory", default="1Gi", metavar="SIZE", help="The most for /dev/shm: 1Gi.")
    add("--grace", type=int, default=60, metavar="SECONDS", help="From SIGTERM to SIGKILL: 60.")
    given, separator, line = _split(list(arguments))
    if not separator and not {"-h", "--help"} & set(given):
        parser.error("-- is missing, and behind it horoaccrun's flags and the command")
    chosen = parser.parse_args(given)
    if not _NAME.fullmatch(chosen.name):
        parser.error(f"--name {chosen.name}: at most 52 of a-z, 0-9 and -, as names of hosts are")
    for flag, pattern in _FORMS.items():
        value = getattr(chosen, flag)
        if value is not None and not pattern.fullmatch(str(value)):
            name = flag.replace("_", "-")
            parser.error(f"--{name} {value!r} is nothing that Kubernetes takes there")
    options = parse_arguments(line, {})
    if chosen.pods < 1 or options.size % chosen.pods:
        parser.error(
            f"-np asks for {options.size} ranks on {chosen.pods} pods: each has the same number"
        )
    if options.text("control") == "mpi" or options.given.get("tcp") is False:
        parser.error("ranks of pods cannot use MPI: leave --mpi out")
    if chosen.grace <= _SPARE_SECONDS:
        parser.error(f"--grace must be more than {_SPARE_SECONDS} s, not {chosen.grace}")
    if options.hosts or options.text("host_discovery_script"):
        parser.error("pods are the hosts: leave -H, --hostfile and the discovery script out")
    print("---\n".join(text(each) for each in objects(chosen, line, options.elastic)), end="")
    return 0


def _split(arguments: list[str]) -> tuple[list[str], bool, list[str]]:
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], at < len(arguments), arguments[at + 1 :]


def objects(chosen: argparse.Namespace, line: list[str], elastic: bool) -> list[dict[str, Any]]:
    """The objects of a job, in the order in which they are made.

    Args:
        chosen: The flags.
        line: horoaccrun's command line.
        elastic: Whether pods may come and go.
    """
    labels = {"app.kubernetes.io/name": chosen.name, "app.kubernetes.io/managed-by": "horoaccrun"}
    about: dict[str, Any] = {"name": chosen.name, "labels": labels}
    if chosen.namespace:
        about["namespace"] = chosen.namespace
    secret = {
        "apiVersion": "v1", "kind": "Secret", "metadata": about, "type": "Opaque",
        "stringData": {"secret": secrets.token_hex(32)},
        "immutable": True,  # another manifest's would shut pods out of the job that runs
    }  # fmt: skip
    service = {
        "apiVersion": "v1", "kind": "Service", "metadata": about,
        "spec": {
            # Without an address of its own it gives names to pods, also before they are ready.
            "clusterIP": "None", "publishNotReadyAddresses": True,
            "selector": {"batch.kubernetes.io/job-name": chosen.name},
            "ports": [{"name": "rendezvous", "port": PORT}],
        },
    }  # fmt: skip
    job = {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": about,
        "spec": {
            "completionMode": "Indexed", "completions": chosen.pods, "parallelism": chosen.pods,
            # One failure of a job of fixed ranks ends all of its pods.
            "backoffLimit": (100 if elastic else 6) * chosen.pods,
            # Never two pods with one index at a time.
            "podReplacementPolicy": "Failed",
            # The first pod's end is the elastic job's: nobody hears a pod that was replaced then.
            **({"successPolicy": {"rules": [{"succeededIndexes": "0"}]}} if elastic else {}),
            "template": {"metadata": {"labels": labels}, "spec": _pod(chosen, line)},
        },
    }  # fmt: skip
    return [*([] if chosen.secret else [secret]), service, job]


def _pod(chosen: argparse.Namespace, line: list[str]) -> dict[str, Any]:
    first = f"{chosen.name}-0.{chosen.name}"
    values = {
        "HOROACC_PODS": chosen.pods, "HOROACC_RENDEZVOUS": f"{first}:{PORT}",
        "HOROACC_GRACE_SECONDS": chosen.grace - _SPARE_SECONDS,
        "MASTER_ADDR": first, "MASTER_PORT": MASTER_PORT,
    }  # fmt: skip
    of = {"name": chosen.secret or chosen.name, "key": "secret"}
    probe = {"exec": {"command": ["sh", "-c", _PROBE]}, "timeoutSeconds": 10}
    given = {"cpu": chosen.cpu, "memory": chosen.memory, "nvidia.com/gpu": chosen.gpus}
    limits = {name: value for name, value in given.items() if value is not None}
    container = {
        "name": "ranks", "image": chosen.image, "command": ["horoaccrun", *line],
        "env": [
            *({"name": name, "value": str(value)} for name, value in values.items()),
            {"name": "HOROACC_SECRET", "valueFrom": {"secretKeyRef": of}},
        ],
        "ports": [{"containerPort": PORT, "name": "rendezvous"}],
        "startupProbe": {**probe, "periodSeconds": 5, "failureThreshold": 60},
        "livenessProbe": {**probe, "periodSeconds": 30},
        "resources": {"requests": limits, "limits": limits},
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],
    }  # fmt: skip
    shared = {"medium": "Memory", "sizeLimit": chosen.shared_memory}
    return {
        "subdomain": chosen.name, "restartPolicy": "Never",
        "terminationGracePeriodSeconds": chosen.grace, "containers": [container],
        "volumes": [{"name": "shared-memory", "emptyDir": shared}],
    }  # fmt: skip


def text(value: dict[str, Any]) -> str:
    """YAML of maps, lists, texts, numbers, true and false; texts as JSON writes them."""
    return "".join(f"{line}\n" for line in _lines(value))


def _lines(value: Any) -> Iterator[str]:
    pairs = value.items() if isinstance(value, dict) else (("-", each) for each in value)
    for name, each in pairs:
        head = "-" if name == "-" else f"{name}:"
        if not isinstance(each, (dict, list)) or not each:
            yield f"{head} {json.dumps(each)}"
        elif name == "-":
            first, *rest = _lines(each)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)
        else:
            yield head
            yield from (f"  {line}" for line in _lines(each))
