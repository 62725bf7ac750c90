"""Checks and times the CUDA kernels on the GPU: python check_kernels.py LIBRARY [PART ...].

Each part says PASS or FAIL and the next one runs in any case; a figure is a line of JSON.
"""

from __future__ import annotations

import json
import math
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
from kernels import OPS, TYPES, Kernels
from torch.profiler import ProfilerActivity, profile

MIB = 1 << 20
GPU = "cuda"
TENSORS = 2000
SHAPES = ((1, 0), (1000, 0), (4099, 1), (70001, 3))
"""Elements, and how far the first one is from what is aligned."""
SIZES = (64, 256)
"""MiB."""


def tree(values: list[torch.Tensor], op: str) -> torch.Tensor:
    """Folds along the balanced tree over ranks, on the CPU."""
    if len(values) == 1:
        return values[0]
    left = 1
    while 2 * left < len(values):
        left *= 2
    a, b = tree(values[:left], op), tree(values[left:], op)
    if op in ("sum", "average"):
        return a + b
    if op == "product":
        return a * b
    return torch.minimum(a, b) if op == "min" else torch.maximum(a, b)


def expected(sources: list[torch.Tensor], op: str) -> torch.Tensor:
    """The expected result, to the bit."""
    kind = sources[0].dtype
    if kind == torch.bool:
        whole = torch.stack(sources)
        return whole.all(0) if op in ("min", "product") else whole.any(0)
    wide = {torch.float16: torch.float32, torch.bfloat16: torch.float32}.get(kind, kind)
    if not kind.is_floating_point:
        wide = torch.int64
    total = tree([source.to(wide) for source in sources], op)
    if op == "average":
        if kind.is_floating_point:
            total = total * torch.tensor(1 / len(sources), dtype=wide)
        else:
            total = torch.div(total, len(sources), rounding_mode="trunc")
    return total.to(kind)


def values(kind: torch.dtype, count: int, seed: int) -> torch.Tensor:
    """Random elements on the CPU."""
    random = torch.Generator().manual_seed(seed)
    if kind == torch.bool:
        return torch.rand(count, generator=random) < 0.5
    if kind.is_floating_point:
        return (torch.rand(count, generator=random, dtype=torch.float64) * 4 - 2).to(kind)
    low = 0 if kind == torch.uint8 else -100
    return torch.randint(low, 100, (count,), generator=random).to(kind)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def reduce_is_exact(kernels: Kernels) -> None:
    """Every type and operation, 1 to 16 sources, misaligned, in place and apart."""
    for kind in TYPES:
        for op in OPS:
            if kind == torch.bool and op == "average":
                continue
            for ranks in (1, 2, 3, 4, 5, 8, 16):
                for count, shift in SHAPES:
                    inputs = [values(kind, count + shift, 9 * r + count) for r in range(ranks)]
                    want = expected([x[shift:] for x in inputs], op)
                    given = [x.to(GPU) for x in inputs]
                    taken = [torch.empty_like(given[0][shift:]) for _ in range(2)]
                    kernels.reduce([x[shift:] for x in given], taken, op)
                    kernels.reduce([x[shift:] for x in given], [x[shift:] for x in given], op)
                    for got in (*taken, *(x[shift:] for x in given)):
                        assert same(got.cpu(), want), f"{kind} {op} of {ranks}, {count} + {shift}"


def factors_are_exact(kernels: Kernels) -> None:
    """A factor before, whose product is an element again, and one behind; both in float32."""
    before, behind = torch.tensor(0.3), torch.tensor(0.7)
    for kind in (torch.float32, torch.float16, torch.bfloat16):
        inputs = [values(kind, 5000, r) for r in range(4)]
        wide = [(x.float() * before).to(kind).float() for x in inputs]
        want = (tree(wide, "sum") * behind).to(kind)
        out = torch.empty_like(inputs[0], device=GPU)
        kernels.reduce([x.to(GPU) for x in inputs], [out], "sum", 0.3, 0.7)
        assert same(out.cpu(), want), str(kind)


def pack_is_exact(kernels: Kernels) -> None:
    """Many tensors of odd lengths into one buffer and back, copied, scaled and cast."""
    lengths = [1 + 37 * i % 1013 for i in range(TENSORS)]
    for kind, fused in (
        (torch.float32, torch.float32), (torch.float32, torch.float16),
        (torch.float32, torch.bfloat16), (torch.float16, torch.float32), (torch.int64, torch.int64),
        (torch.uint8, torch.uint8), (torch.float64, torch.float64),
    ):  # fmt: skip
        factor = 0.5 if kind.is_floating_point else 1.0
        inputs = [values(kind, n, n) for n in lengths]
        buffer = torch.zeros(sum(lengths), dtype=fused, device=GPU)
        parts = list(buffer.split(lengths))
        given = [x.to(GPU) for x in inputs]
        kernels.pack(kernels.batch(given, parts), kind, fused, factor)
        whole = torch.cat(inputs)
        wide = kind if kind == torch.float64 else torch.float32  # in which factors are multiplied
        want = (whole.double() * factor).to(wide).to(fused) if factor != 1 else whole.to(fused)
        assert same(buffer.cpu(), want), f"{kind} to {fused}"
        back = [torch.empty_like(x) for x in given]
        kernels.pack(kernels.batch(parts, back), fused, kind)
        assert same(torch.cat(back).cpu(), want.to(kind)), f"{fused} back to {kind}"


def nonfinite_is_counted(kernels: Kernels) -> None:
    """NaNs, infinities and numbers that overflow in float16."""
    source = torch.ones(100_000, device=GPU)
    source[::1000] = math.nan
    source[1::2000] = -math.inf
    source[2::5000] = 1e6
    out = torch.empty(100_000, dtype=torch.float16, device=GPU)
    counter = torch.zeros(1, dtype=torch.int64, device=GPU)
    kernels.pack(kernels.batch([source], [out]), source.dtype, out.dtype, 1.0, counter)
    assert int(counter) == 100 + 50 + 20, int(counter)
    assert int((~out.cpu().isfinite()).sum()) == int(counter)


def milliseconds(call: Callable[[int], None], calls: int = 20) -> float:
    """The median of five rounds; `call` gets a number to rotate buffers by."""
    rounds = []
    for _ in range(6):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for k in range(calls):
            call(k)
        end.record()
        end.synchronize()
        rounds.append(begin.elapsed_time(end) / calls)
    return sorted(rounds[1:])[2]


def copy_bandwidth() -> float:
    """Bytes read and written a second, by torch's copy of 256 MiB."""
    buffers = [torch.empty(256 * MIB, dtype=torch.uint8, device=GPU) for _ in range(4)]
    spent = milliseconds(lambda k: buffers[k % 2].copy_(buffers[2 + k % 2]))
    return 2 * 256 * MIB / (spent / 1e3)


def figure(name: str, moved: float, spent: float, roof: float, **more: object) -> None:
    rate = moved / (spent / 1e3)
    row = {"what": name, "us": round(spent * 1e3, 2), "GB/s": round(rate / 1e9, 1)}
    print(json.dumps({**row, "of copy": round(rate / roof, 3), **more}), flush=True)


def launches_of_a_pack(kernels: Kernels) -> None:
    """Kernels that one pack of many tensors launches, as the profiler counts them."""
    given = [torch.ones(1 + k % 100, device=GPU) for k in range(TENSORS)]
    out = [torch.empty_like(tensor) for tensor in given]
    table = kernels.batch(given, out)
    kernels.pack(table, torch.float32, torch.float32)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        kernels.pack(table, torch.float32, torch.float32)
        torch.cuda.synchronize()
    names = [event.name for event in seen.events() if "Pack" in event.name]
    assert names, "the profiler saw no kernel"
    print(json.dumps({"what": "launches", "tensors": TENSORS, "kernels": len(names)}), flush=True)
    assert len(names) == 1, names


def times_of_pack(kernels: Kernels) -> None:
    """Large buckets in 1, 161 and 2000 tensors, copied and cast, laid out as buckets are."""
    roof = copy_bandwidth()
    print(json.dumps({"what": "copy", "GB/s": round(roof / 1e9, 1)}), flush=True)
    for mib in SIZES:
        for tensors in (1, 161, TENSORS):
            for fused in (torch.float32, torch.bfloat16):
                each = mib * MIB // 4 // tensors // 8 * 8  # 16 bytes, cast too
                sets = []
                for _ in range(2):
                    given = [torch.ones(each, device=GPU) for _ in range(tensors)]
                    buffer = torch.empty(each * tensors, dtype=fused, device=GPU)
                    parts = list(buffer.split(each))
                    sets.append((given, parts, kernels.batch(given, parts)))
                size = each * tensors * (4 + buffer.element_size())
                spent = milliseconds(
                    lambda k, s=sets, f=fused: kernels.pack(s[k % 2][2], torch.float32, f)
                )
                kind = str(fused).removeprefix("torch.")
                figure("pack", size, spent, roof, MiB=mib, tensors=tensors, to=kind)


def times_of_reduce(kernels: Kernels) -> None:
    """N sources into 1 and into N destinations; the latter is what mode L's leader launches."""
    roof = copy_bandwidth()
    for mib in SIZES:
        for kind in (torch.float32, torch.bfloat16, torch.float16):
            for ranks in (2, 3, 4, 8) if mib == SIZES[0] else (2, 4, 8):
                count = mib * MIB // kind.itemsize
                sources = [torch.ones(count, dtype=kind, device=GPU) for _ in range(ranks)]
                out = [torch.empty_like(sources[0])]
                more = {"type": str(kind).removeprefix("torch."), "ranks": ranks, "MiB": mib}
                spent = milliseconds(lambda _, s=sources, o=out: kernels.reduce(s, o), 5)
                figure("reduce", mib * MIB * (ranks + 1), spent, roof, **more)
                spent = milliseconds(lambda _, s=sources: kernels.reduce(s, s, "average"), 5)
                figure("reduce to all", 2 * mib * MIB * ranks, spent, roof, **more)
                del sources, out


PARTS = (
    reduce_is_exact, factors_are_exact, pack_is_exact, nonfinite_is_counted, launches_of_a_pack,
    times_of_pack, times_of_reduce,
)  # fmt: skip


def main() -> int:
    """Gives the number of parts that failed."""
    library, *wanted = sys.argv[1:]
    names = {part.__name__ for part in PARTS}
    if unknown := set(wanted) - names:
        raise SystemExit(f"no such part: {sorted(unknown)}; there are {sorted(names)}")
    failed = 0
    kernels = Kernels(Path(library))
    for part in PARTS:
        if wanted and part.__name__ not in wanted:
            continue
        begin = time.monotonic()
        try:
            part(kernels)
            torch.cuda.synchronize()
            verdict = "PASS"
        except Exception:  # the other parts tell more
            traceback.print_exc()
            verdict = "FAIL"
            failed += 1
        print(f"{verdict} {part.__name__} ({time.monotonic() - begin:.1f} s)", flush=True)
    kernels.close()
    return failed


if __name__ == "__main__":
    sys.exit(main())
