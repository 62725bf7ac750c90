"""`optimize` against eager: a step of the model as it has chosen, and of a copy that it never saw.

Each of two ranks has the network twice. One copy runs as `horoacc.torch.optimize` has chosen, and
the choice is not one that an earlier job has remembered. Blocks of steps of both take turns, each
pair gives a ratio, and the interval of their median judges.
"""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path

from benchmarks.group import GroupFailed, groups
from benchmarks.lockstep import RANKS, TOGETHER, Copy, train
from benchmarks.rank import Rank
from benchmarks.records import Records
from benchmarks.tuned.comparison import new_cache
from horoacc.trials import interval

_NETS = {
    "ResNet-20-shaped CNN, batch 16": "cnn", "100 x Linear(64,64), batch 32": "deep",
    "MLP 1024-2048-2048-1000, batch 32": "mlp",
}  # fmt: skip
_SLOWER, _PAIRS, _BLOCK_SECONDS = 2.0, 200, 0.1
_EAGER, _CHOSEN = "eager", "chosen"


def build(rank: Rank, net: str) -> bool:
    """Makes both copies; says whether the choice was to compile."""
    from torch.nn.functional import cross_entropy

    import horoacc.torch as hvd

    rank.kept["meet"] = {TOGETHER: lambda: None}
    for copy in (_EAGER, _CHOSEN):
        rank.kept[copy] = Copy(rank, net, "optimizer", TOGETHER)
    chosen: Copy = rank.kept[_CHOSEN]
    x, y = chosen.data
    hvd.optimize(chosen.own, x, lambda output: cross_entropy(output, y), optimizer=chosen.optimizer)
    return any(module._compiled_call_impl for module in chosen.own.modules())


def run(records: Records, quick: bool) -> None:
    """Measures each network."""
    report_failure = records.reporter_of_failures(RANKS)
    if not importlib.util.find_spec("torch"):
        records.write({"skipped": "torch is not installed"})
        return
    for what, net in _NETS.items():
        with (
            tempfile.TemporaryDirectory() as folder,
            groups(["horoacc"], RANKS, report_failure, False, HOROACC_ARENA="gradients",
                   HOROACC_CACHE_DIR=new_cache(Path(folder))) as up,
        ):  # fmt: skip
            if "horoacc" not in up:
                return
            group = up["horoacc"]
            try:
                compiled = group.run(build, net)[0]
                slower = max(max(group.run(train, copy, 3)) for copy in (_EAGER, _CHOSEN))
                steps = max(1, round(_BLOCK_SECONDS / slower))
                pairs = []
                for turn in range(6 if quick else _PAIRS):
                    order = (_EAGER, _CHOSEN) if turn % 2 else (_CHOSEN, _EAGER)
                    pairs.append(
                        {copy: sum(group.run(train, copy, steps)) / RANKS for copy in order}
                    )
            except GroupFailed as error:
                report_failure("horoacc", f"{what}: {error}")
                continue
        low, median, high = interval([100 * (of[_CHOSEN] / of[_EAGER] - 1) for of in pairs])
        eager = 1e3 * interval([of[_EAGER] for of in pairs]).median
        records.target(
            f"{what}: a step as optimize has chosen, over eager", median, _SLOWER, "%", True,
            interval=(low, high), pairs=len(pairs), steps=steps,
            note=f"{eager:.3g} ms eager; {'compiled' if compiled else 'it stays eager'}",
        )  # fmt: skip
        if quick:
            return
