"""Manifests against Kubernetes' own schemas, and what is refused."""

from __future__ import annotations

import kubernetes_validate
import pytest
import yaml
from pods import ROOT, manifest

FIRST = ("--name", "digits", "--image", "registry.example/horoacc:1", "--pods", "2")
LINE = ("--", "-np", "4", "python", "train.py")
ALL = (
    *("--namespace", "team", "--cpu", "4", "--memory", "16Gi", "--gpus", "2", "--grace", "90"),
    *("--shared-memory", "8Gi"),
)


@pytest.mark.parametrize(
    ("flags", "line", "kinds"),
    [
        ((), LINE, ["Secret", "Service", "Job"]),
        (ALL, LINE, ["Secret", "Service", "Job"]),
        (("--secret", "mine"), LINE, ["Service", "Job"]),
        ((), ("--", "-np", "4", "--min-np", "2", "python", "a: b.py", "'\"#\n"), None),
    ],
)
def test_the_schemas_of_kubernetes_take_it(
    flags: tuple[str, ...], line: tuple[str, ...], kinds: list[str] | None
) -> None:
    told = list(yaml.safe_load_all(manifest(*FIRST, *flags, *line)))
    for each in told:
        kubernetes_validate.validate(each, "1.37.0", strict=True)
    assert kinds is None or [each["kind"] for each in told] == kinds
    job = told[-1]["spec"]
    assert (job["completionMode"], job["completions"], job["parallelism"]) == ("Indexed", 2, 2)
    policy = {"rules": [{"succeededIndexes": "0"}]} if "--min-np" in line else None
    assert job.get("successPolicy") == policy
    (container,) = job["template"]["spec"]["containers"]
    assert container["command"] == ["horoaccrun", *line[1:]]
    names = {each["name"] for each in container["env"]}
    assert {"HOROACC_PODS", "HOROACC_RENDEZVOUS", "HOROACC_SECRET"} <= names
    given = container["resources"]["limits"]
    assert given == ({"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": 2} if flags == ALL else {})
    other = list(yaml.safe_load_all(manifest(*FIRST, *flags, *line)))
    assert kinds == ["Service", "Job"] or told[0]["stringData"] != other[0]["stringData"]


def test_a_wrong_manifest_is_refused_by_them() -> None:
    job = list(yaml.safe_load_all(manifest(*FIRST, *LINE)))[-1]
    job["spec"]["completionsMode"] = job["spec"].pop("completionMode")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, "1.37.0", strict=True)


def test_the_example_is_what_its_first_line_says() -> None:
    text = (ROOT / "examples" / "kubernetes.yaml").read_text()
    first, _, rest = text.partition("\n")
    words = first.removeprefix("# horoaccrun k8s manifest ").split()
    told = list(yaml.safe_load_all(manifest(*words)))
    assert told == list(yaml.safe_load_all(rest))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((*FIRST, "--", "-np", "3", "python"), "-np asks for 3 ranks on 2 pods"),
        ((*FIRST, "-np", "4"), "-- is missing"),
        ((*FIRST, "--", "python"), "-np is missing"),
        ((*FIRST, "--grace", "5", *LINE), "--grace must be more than 15 s, not 5"),
        ((*FIRST, "--", "-np", "4", "-H", "a:4", "python"), "pods are the hosts"),
        ((*FIRST, "--pods", "0", *LINE), "on 0 pods"),
        (("--name", "Digits_1", *FIRST[2:], *LINE), "--name Digits_1: at most 52 of"),
        (("--name", "digits", *LINE), "--image, --pods"),
        ((*FIRST, "--", "-np", "4", "--mpi", "python"), "ranks of pods cannot use MPI"),
        *(
            ((*FIRST, flag, value, *LINE), f"{flag} '{value}' is nothing that Kubernetes takes")
            for flag, value in (
                ("--cpu", "lots"),
                ("--memory", "8GB"),
                ("--shared-memory", "x"),
                ("--image", ""),
                ("--namespace", "Foo_"),
                ("--secret", "A_B"),
            )
        ),
        ((*FIRST, "--gpus", "0", *LINE), "--gpus 0 is nothing that Kubernetes takes"),
    ],
)
def test_bad_input_is_one_line(flags: tuple[str, ...], words: str) -> None:
    assert words in manifest(*flags, code=2).splitlines()[-1]
