"""Writes the API reference from the docstrings: python docs/reference.py [--check].

A function whose docstring says that its arguments are "as for" another's gets that one's list; what
it takes beyond must be named in its text.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import horoacc
import horoacc.torch
from horoacc.compression import NoneCompressor
from horoacc.dtypes import OP_NAMES
from horoacc.torch import autograd

PAGES = Path(__file__).resolve().parent / "api"
BOTH = "In `horoacc` for arrays, and in `horoacc.torch` for tensors."
# By page: its title and what it says first, then sections of names. A name is looked up in
# horoacc.torch and then in horoacc.
CONTENTS: dict[str, tuple[str, str, dict[str, list[str]]]] = {
    "job": (
        "The job",
        "Joining and leaving it, and what a process may ask. " + BOTH,
        {
            "Joining and leaving": ["init", "shutdown", "is_initialized", "run"],
            "Places": [
                "rank", "size", "local_rank", "local_size", "cross_rank", "cross_size",
                "is_homogeneous",
            ],
            "What happens in it": ["start_timeline", "stop_timeline", "counters", "metrics"],
            "What is there": [
                "mpi_built", "mpi_enabled", "mpi_threads_supported", "gloo_built", "gloo_enabled",
                "nccl_built", "ddl_built", "ccl_built", "cuda_built", "rocm_built",
            ],
            "Horovod's names": ["install_as_horovod"],
        },
    ),
    "collectives": (
        "Collectives",
        BOTH + " Of the latter, those that neither begin asynchronously nor work in place are "
        "differentiable.",
        {
            "Allreduce": [
                "allreduce", "allreduce_async", "allreduce_", "allreduce_async_",
                "grouped_allreduce", "grouped_allreduce_async", "grouped_allreduce_",
                "grouped_allreduce_async_", "sparse_allreduce_async",
            ],
            "All-gather": [
                "allgather", "allgather_async", "grouped_allgather", "grouped_allgather_async",
            ],
            "Broadcast": ["broadcast", "broadcast_async", "broadcast_", "broadcast_async_"],
            "All-to-all": ["alltoall", "alltoall_async"],
            "Reduce-scatter": [
                "reducescatter", "reducescatter_async", "grouped_reducescatter",
                "grouped_reducescatter_async",
            ],
            "Handles": ["poll", "synchronize"],
            "Ranks": ["barrier", "join"],
            "Objects": ["broadcast_object", "allgather_object"],
            "Process sets": ["ProcessSet", "add_process_set", "remove_process_set"],
        },
    ),
    "training": (
        "Training with PyTorch",
        "In `horoacc.torch`.",
        {
            "Parameters": ["broadcast_parameters", "broadcast_optimizer_state"],
            "Compilation": ["optimize"],
            "Optimizers": [
                "DistributedOptimizer",
                *(
                    f"optimizer._DistributedOptimizer.{method}"
                    for method in (
                        "step", "synchronize", "skip_synchronize", "zero_grad",
                        "backward_passes_per_step", "set_backward_passes_per_step",
                        "add_param_group", "load_state_dict", "find_duplicates",
                    )
                ),
            ],
            "Optimizers with Adasum": [
                f"adasum_optimizer._DistributedAdasumOptimizer.{method}"
                for method in (
                    "step", "synchronize", "skip_synchronize", "backward_passes_per_step",
                    "set_backward_passes_per_step", "find_duplicates",
                )
            ],
            "Layers": ["SyncBatchNorm"],
            "Compression": [
                "Compression", "compression.Compressor", "compression.Codec",
            ],
        },
    ),
    "elastic": (
        "Elastic training",
        "In `horoacc.torch.elastic`; `run`, `ObjectState` and `State` also in `horoacc.elastic`.",
        {
            "The loop": ["elastic.run"],
            "States": ["elastic.State", "elastic.ObjectState", "elastic.TorchState"],
            "The sampler": ["elastic.ElasticSampler"],
            "Handlers": [
                "elastic.state.StateHandler", "elastic.state.get_handler_registry",
                "elastic.state.set_handler_registry",
            ],
        },
    ),
    "tensorflow": (
        "TensorFlow",
        "In `horoacc.tensorflow`, beside what [job.md](job.md) has. Kinds of execution and errors: "
        "[tensorflow.md](../tensorflow.md).",
        {
            "Reductions": [
                "allreduce", "grouped_allreduce", "reducescatter", "grouped_reducescatter",
            ],
            "Exchanges": [
                "allgather", "grouped_allgather", "broadcast", "broadcast_", "alltoall", "join",
            ],
            "Places in a graph": [
                "rank_op", "local_rank_op", "local_size_op", "size_op", "process_set_included_op",
            ],
            "Variables and objects": [
                "broadcast_variables", "broadcast_global_variables",
                "BroadcastGlobalVariablesHook", "broadcast_object", "broadcast_object_fn",
                "allgather_object",
            ],
            "Gradients": [
                "DistributedGradientTape", "PartialDistributedGradientTape",
                "gradient_tape._DistributedGradientTape.gradient",
                "gradient_tape._DistributedGradientTape.register_local_source",
                "gradient_tape._DistributedGradientTape.get_local_and_global_gradients",
                "DistributedOptimizer",
                "gradient_aggregation.LocalGradientAggregation",
            ],
            "Layers": ["SyncBatchNormalization"],
            "Elastic training": [
                "elastic.run", "elastic.TensorFlowState", "elastic.TensorFlowKerasState",
            ],
            "Data service": [
                "data.compute_service.TfDataServiceConfig",
                "data.compute_service.tf_data_service",
                "data.compute_service.send_to_data_service",
                "data.compute_service.compute_worker_fn", "data.compute_worker.main",
            ],
        },
    ),
    "keras": (
        "Keras",
        "In `horoacc.keras`; `horoacc.tensorflow.keras` has the same. What cannot work: "
        "[keras.md](../keras.md).",
        {
            "Optimizers": [
                "DistributedOptimizer", "PartialDistributedOptimizer",
                *(
                    f"optimizer._DistributedOptimizer.{method}"
                    for method in (
                        "register_local_var", "apply", "apply_gradients", "compute_gradients",
                        "get_gradients",
                    )
                ),
            ],
            "Collectives": [
                "allreduce", "allgather", "broadcast", "reducescatter",
                "broadcast_global_variables",
            ],
            "Files": ["load_model"],
            "Callbacks": [
                "callbacks.BroadcastGlobalVariablesCallback", "callbacks.MetricAverageCallback",
                "callbacks.LearningRateScheduleCallback", "callbacks.LearningRateWarmupCallback",
                "callbacks.BestModelCheckpoint",
            ],
            "Elastic training": [
                "elastic.run", "elastic.KerasState", "elastic.CommitStateCallback",
                "elastic.UpdateBatchStateCallback", "elastic.UpdateEpochStateCallback",
            ],
        },
    ),
}  # fmt: skip
GRADIENTS = {
    "allreduce, grouped_allreduce": autograd.Allreduce,
    "allgather, grouped_allgather": autograd.Allgather,
    "broadcast": autograd.Broadcast,
    "alltoall": autograd.Alltoall,
    "reducescatter, grouped_reducescatter": autograd.Reducescatter,
}
"""What the collectives' backward passes are; their docstrings say it."""
FRONTENDS = {
    "tensorflow": "horoacc.tensorflow",
    "keras": "horoacc.keras",
}
"""Pages whose names are those of one frontend only."""
CONSTANTS = ("Adasum", "Average", "Max", "Min", "Product", "Sum", "__version__",
             "global_process_set")  # fmt: skip
"""Public names that docs/api/README.md tells of."""
SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises):$", re.MULTILINE)


@dataclass
class Docstring:
    """What a docstring of Google's style says."""

    text: str
    sections: dict[str, str] = field(default_factory=dict)

    def rows(self, section: str) -> dict[str, str]:
        """The entries of a section, by name."""
        found: dict[str, str] = {}
        for line in self.sections.get(section, "").splitlines():
            if match := re.match(r"([\w.]+): (.*)", line):
                name = match[1]
                found[name] = match[2]
            elif line.strip():
                found[name] += " " + line.strip()
        return found


def parsed(thing: Any) -> Docstring:
    """Reads an object's docstring."""
    head, *parts = SECTION.split(inspect.getdoc(thing) or "")
    bodies = [inspect.cleandoc(body) for body in parts[1::2]]
    return Docstring(head.strip(), dict(zip(parts[::2], bodies, strict=True)))


def found(name: str, frontend: str = "") -> Any:
    """The object that a name of `CONTENTS` means, in `frontend` or in the common ones."""
    modules = [importlib.import_module(frontend)] if frontend else [horoacc.torch, horoacc]
    for module in modules:
        thing: Any = module
        for part in name.split("."):
            if inspect.ismodule(thing) and not hasattr(thing, part):
                try:
                    importlib.import_module(f"{thing.__name__}.{part}")
                except ImportError:
                    thing = None
                    break
            thing = getattr(thing, part, None)
        if thing is not None:
            return thing
    raise LookupError(f"there is no {name}")


def docstring(name: str, thing: Any, frontend: str = "") -> Docstring:
    """What an object's docstring says, with what it takes from another's."""
    said = parsed(thing)
    if match := re.search(r"\bas (?:for|in) `(horoacc\.)?([\w.]+)`", said.text):
        other = match[2]
        frontend = "horoacc" if match[1] else frontend
        neutral = None if frontend else getattr(horoacc, other, None)
        thing = neutral or found(other, frontend)
        for section, body in docstring(other, thing, frontend).sections.items():
            if section != "Returns":
                said.sections.setdefault(section, body)
    return said


def signature(thing: Any) -> str:
    """Parameters and defaults, without types: their text is in the descriptions."""
    shown = []
    star = False
    for name, parameter in inspect.signature(thing).parameters.items():
        if name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            shown.append("*")
            star = True
        prefix = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
        text = prefix.get(parameter.kind, "") + name
        if parameter.default is not parameter.empty:
            text += f"={default(name, parameter.default)}"
        shown.append(text)
    return f"({', '.join(shown)})"


def default(name: str, value: Any) -> str:
    """How a parameter's default is written."""
    if name == "op" and value is not None:
        return OP_NAMES[value]
    if value is horoacc.global_process_set:
        return "global_process_set"
    if inspect.isclass(value) and value is NoneCompressor:
        return "Compression.none"
    return value.__name__ if inspect.isroutine(value) else repr(value)


def entry(name: str, thing: Any, level: int, frontend: str = "") -> list[str]:
    """The lines about one object, and about the methods of a class."""
    said = docstring(name, thing, frontend)
    shown = re.sub(r"^\w+\._", "", name)
    if isinstance(thing, property):
        lines = [f"{'#' * level} `{shown}`", "", said.text]
        return [*lines, *table("raises", said.rows("Raises")), ""]
    call = "" if inspect.isclass(thing) and not takes(thing) else signature(thing)
    lines = [f"{'#' * level} `{shown}`", "", f"```text\n{shown.rpartition('.')[2]}{call}\n```"]
    lines += ["", said.text]
    made = parsed(thing.__init__) if inspect.isclass(thing) else said
    arguments = made.rows("Args") if inspect.isclass(thing) else said.rows("Args")
    wanted = takes(thing)
    told = " ".join([said.text, *said.rows("Attributes")])
    missing = [n for n in wanted if n not in arguments and not re.search(rf"\b{n}\b", told)]
    if missing:
        raise ValueError(f"{name}: nothing is said about {missing}")
    rows = {n: arguments[n] for n in wanted if n in arguments}
    if name.endswith("_"):
        rows = {n: text.removesuffix(" Not changed.") for n, text in rows.items()}
    lines += table("argument", rows)
    lines += table("attribute", said.rows("Attributes"))
    for section in ("Returns", "Yields"):
        if section in said.sections:
            lines += ["", f"**{section}** " + " ".join(said.sections[section].split())]
    raises = made.rows("Raises") if inspect.isclass(thing) else said.rows("Raises")
    lines += table("raises", raises)
    lines.append("")
    if inspect.isclass(thing):
        for method, function in vars(thing).items():
            function = getattr(function, "__func__", function)
            # What Keras calls of a callback is told with its class.
            hook = method.startswith("on_") and hasattr(thing, "set_params")
            if (
                method.startswith("_")
                or hook
                or not (inspect.isfunction(function) or isinstance(function, property))
            ):
                continue
            if isinstance(function, property):
                lines += [f"{'#' * (level + 1)} `{shown}.{method}`", "", parsed(function).text, ""]
            else:
                lines += entry(f"{shown}.{method}", function, level + 1, frontend)
    return lines


def takes(thing: Any) -> list[str]:
    """The names of a call's parameters."""
    try:
        names = list(inspect.signature(thing).parameters)
    except ValueError:
        return []
    return [name for name in names if name != "self"]


def table(what: str, rows: dict[str, str]) -> list[str]:
    """A table of names and what is said about each."""
    if not rows:
        return []
    cells = (text.replace("|", "\\|") for text in rows.values())
    lines = [f"| `{name}` | {text} |" for name, text in zip(rows, cells, strict=True)]
    return ["", f"| {what} | |", "|---|---|", *lines]


def gradients() -> list[str]:
    """The section about backward passes."""
    said = parsed(autograd).text.partition("\n\n")[2].split("\n\n")
    lines = ["## Gradients", "", "Of tensors in `horoacc.torch`, also within `torch.compile`."]
    lines += [said[0], "", "| of | with respect to the input it is |", "|---|---|"]
    for calls, function in GRADIENTS.items():
        names = ", ".join(f"`{call}`" for call in calls.split(", "))
        lines.append(f"| {names} | {' '.join(parsed(function.backward).text.split())} |")
    return [*lines, "", *said[1:], ""]


def page(name: str) -> str:
    """The text of a page of `CONTENTS`."""
    title, first, sections = CONTENTS[name]
    frontend = FRONTENDS.get(name, "")
    lines = [f"# {title}", "", "Written by `python docs/reference.py` from the docstrings.", first]
    lines += ["What holds for all of them is in [README.md](README.md).", ""]
    for heading, names in sections.items():
        lines += [f"## {heading}", ""]
        for each in names:
            lines += entry(each, found(each, frontend), 3, frontend)
    if name == "collectives":
        lines += gradients()
    return "\n".join(lines).rstrip() + "\n"


def main() -> str:
    """Writes all pages; with `--check` it says instead which are not what it would write."""
    PAGES.mkdir(exist_ok=True)
    files = {PAGES / f"{name}.md": page(name) for name in CONTENTS}
    if sys.argv[1:] == ["--check"]:
        old = [file.name for file, text in files.items() if file.read_text() != text]
        return f"run: python docs/reference.py, for {', '.join(old)}" if old else ""
    for file, text in files.items():
        file.write_text(text)
    return ""


if __name__ == "__main__":
    sys.exit(main() or 0)
