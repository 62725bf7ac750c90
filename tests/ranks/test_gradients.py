"""Gradients of the collectives: eagerly and compiled, against closed forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import oracle
import pytest
import torch
from paths import CONTROL_PATHS, only
from test_adasum import adasum
from test_contract_reductions import process_set

import horoacc.torch as hvd

pytestmark = pytest.mark.ranks(1, 2, 3, 4, framework="horoacc.torch")
(CONTROL,) = only(CONTROL_PATHS[:1], 3)
by_every_way = pytest.mark.parametrize(
    ("way", "env"),
    [
        pytest.param("eager", {}, id="eager"),
        pytest.param("compiled", {}, id="compiled"),
        pytest.param("eager", *CONTROL.values, id="eager-control", marks=CONTROL.marks),
    ],
)
Function = Callable[..., Any]


def values(shape: tuple[int, ...], rank: int, label: str) -> torch.Tensor:
    return torch.from_numpy(oracle.values("float64", shape, rank, label)).clone()


def upstream(label: str, shape: tuple[int, ...]) -> list[torch.Tensor]:
    """Every rank's gradient of what a collective gives it."""
    return [values(shape, rank, f"to {label}") for rank in range(hvd.size())]


def leaf(label: str, shape: tuple[int, ...]) -> torch.Tensor:
    return values(shape, hvd.rank(), label).requires_grad_()


def through(output: torch.Tensor, label: str) -> torch.Tensor:
    """A loss whose gradient with respect to `output` is this rank's of `upstream`."""
    return (output * values(tuple(output.shape), hvd.rank(), f"to {label}")).sum()


def gradient(output: torch.Tensor, label: str, of: torch.Tensor) -> torch.Tensor:
    through(output, label).backward()
    assert of.grad is not None
    return of.grad


def called(way: str, function: Function) -> Function:
    """A call as it is, or inside a graph."""
    if way == "eager":
        return function
    torch.compiler.reset()
    torch._dynamo.config.capture_dynamic_output_shape_ops = True
    return torch.compile(function, fullgraph=True, backend="aot_eager")  # type: ignore[no-any-return]


def names(name: str, way: str) -> list[str | None]:
    """With a name and, where it costs little, without one."""
    return [name] if way == "compiled" else [name, None]


def folded(op: int, tensors: list[torch.Tensor], pre: float, post: float) -> torch.Tensor:
    arrays = [tensor.numpy() for tensor in tensors]
    if op == hvd.Adasum:
        return post * torch.from_numpy(adasum([pre * array for array in arrays]))
    return torch.from_numpy(oracle.reduce(arrays, op, pre, post))


@pytest.mark.parametrize(
    ("way", "op"),
    [
        *(("eager", op) for op in ("Average", "Sum", "Min", "Max", "Product", "Adasum")),
        # What is compiled passes the operation on as a number.
        ("compiled", "Average"), ("compiled", "Max"),
    ],
)  # fmt: skip
def test_allreduce(way: str, op: str) -> None:
    """The gradient is reduced alike: the same operation, the same factors, the same set."""
    reduction = getattr(hvd, op)
    scales = {"prescale_factor": 2.0, "postscale_factor": 0.25}
    for name in names(f"{op} {way}", way):
        x = leaf("reduce", (4, 3))
        y = called(way, lambda x: hvd.allreduce(x, name=name, op=reduction, **scales))(x)  # noqa: B023
        wanted = folded(reduction, upstream("reduce", (4, 3)), 2.0, 0.25)
        torch.testing.assert_close(gradient(y, "reduce", x), wanted)
    x, z = leaf("one", (2,)), leaf("two", (5, 2))
    a, b = called(way, lambda x, z: hvd.grouped_allreduce([x, z], op=reduction))(x, z)
    (through(a, "one") + through(b, "two")).backward()
    torch.testing.assert_close(x.grad, folded(reduction, upstream("one", (2,)), 1.0, 1.0))
    torch.testing.assert_close(z.grad, folded(reduction, upstream("two", (5, 2)), 1.0, 1.0))


@by_every_way
def test_compressed_allreduce(way: str) -> None:
    """The gradient of the narrower tensor is what travels back."""
    x = leaf("narrow", (7,))
    narrow = hvd.Compression.fp16
    y = called(way, lambda x: hvd.allreduce(x, op=hvd.Sum, compression=narrow))(x)
    ups = [up.half() for up in upstream("narrow", (7,))]
    wanted = torch.from_numpy(oracle.reduce([up.numpy() for up in ups], hvd.Sum)).double()
    assert torch.equal(gradient(y, "narrow", x), wanted)


def test_process_sets() -> None:
    with process_set() as members:
        if members.included():
            assert members.ranks is not None
            x = leaf("set", (3,))
            y = hvd.allreduce(x, op=hvd.Max, process_set=members)
            ups = [upstream("set", (3,))[rank] for rank in members.ranks]
            wanted = torch.stack(ups).max(0).values
            assert torch.equal(gradient(y, "set", x), wanted)
            x = leaf("set", (2,))
            y = hvd.allgather(x, process_set=members)
            given = [values((2 * len(members.ranks),), rank, "to set") for rank in members.ranks]
            own = (sum(given) / len(given))[2 * (members.rank() or 0) :][:2]  # type: ignore[index]
            torch.testing.assert_close(gradient(y, "set", x), own)


@by_every_way
def test_allgather(way: str) -> None:
    me, size = hvd.rank(), hvd.size()
    rows = [rank % 2 + 1 for rank in range(size)]
    for name in names(f"gather {way}", way):
        x = leaf("gather", (rows[me], 3))
        y = called(way, lambda x: hvd.allgather(x, name=name))(x)  # noqa: B023
        mean = sum(upstream("gather", (sum(rows), 3))) / size
        own = mean[sum(rows[:me]) : sum(rows[: me + 1])]  # type: ignore[index]
        torch.testing.assert_close(gradient(y, "gather", x), own)
    x, z = leaf("left", (rows[me],)), leaf("right", (2, 2))
    a, b = called(way, lambda x, z: hvd.grouped_allgather([x, z], name=f"two {way}"))(x, z)
    (through(a, "left") + through(b, "right")).backward()
    mean = sum(upstream("left", (sum(rows),))) / size
    torch.testing.assert_close(x.grad, mean[sum(rows[:me]) : sum(rows[: me + 1])])  # type: ignore[index]
    mean = sum(upstream("right", (2 * size, 2))) / size
    torch.testing.assert_close(z.grad, mean[2 * me : 2 * me + 2])  # type: ignore[index]


@by_every_way
def test_broadcast(way: str) -> None:
    me, size = hvd.rank(), hvd.size()
    for name in names(f"send {way}", way):
        root = size - 1 if name else 0
        x = leaf("send", (3,))
        y = called(way, lambda x: hvd.broadcast(x, root, name=name))(x)  # noqa: B023
        got = gradient(y, "send", x)
        mean = sum(upstream("send", (3,))) / size
        torch.testing.assert_close(got, mean if me == root else torch.zeros_like(x))


@by_every_way
def test_alltoall(way: str) -> None:
    """Rank r sends r + 1 rows to each; their gradients come back to it."""
    me, size = hvd.rank(), hvd.size()
    splits = torch.full((size,), me + 1, dtype=torch.int32)
    for name in names(f"exchange {way}", way):
        x = leaf("exchange", ((me + 1) * size, 2))
        y, received = called(way, lambda x: hvd.alltoall(x, splits, name=name))(x)  # noqa: B023
        assert received.tolist() == [rank + 1 for rank in range(size)]
        begin = sum(range(me + 1))
        ups = upstream("exchange", (sum(range(size + 1)), 2))
        wanted = torch.cat([up[begin : begin + me + 1] for up in ups])
        torch.testing.assert_close(gradient(y, "exchange", x), wanted)
    x = leaf("equal", (2 * size,))
    y = hvd.alltoall(x)
    wanted = torch.cat([up[2 * me : 2 * me + 2] for up in upstream("equal", (2 * size,))])
    torch.testing.assert_close(gradient(y, "equal", x), wanted)


@pytest.mark.parametrize(
    ("way", "op"), [("eager", "Sum"), ("eager", "Average"), ("compiled", "Sum")]
)
def test_reducescatter(way: str, op: str) -> None:
    size = hvd.size()
    factor = float(size) if op == "Sum" else 1.0
    reduction = getattr(hvd, op)
    for name in names(f"scatter {op} {way}", way):
        x = leaf("scatter", (size + 1, 2))
        y = called(
            way,
            lambda x: hvd.reducescatter(x, op=reduction, name=name, postscale_factor=3.0),  # noqa: B023
        )(x)
        pieces = []
        for rank in range(size):
            part = oracle.rows_of(size + 1, rank, size)
            pieces.append(values((part.stop - part.start, 2), rank, "to scatter"))
        torch.testing.assert_close(gradient(y, "scatter", x), torch.cat(pieces) * factor * 3.0)
    x, z = leaf("one", (size, 2)), leaf("two", (2 * size,))
    a, b = called(way, lambda x, z: hvd.grouped_reducescatter([x, z], op=reduction))(x, z)
    (through(a, "one") + through(b, "two")).backward()
    torch.testing.assert_close(x.grad, torch.cat(upstream("one", (1, 2))) * factor)
    torch.testing.assert_close(z.grad, torch.cat(upstream("two", (2,))) * factor)


def test_errors() -> None:
    """What the ranks disagree about on the way back is as much of an error as on the way there."""
    x = leaf("error", (2,))
    with pytest.raises(ValueError, match="no reduction"):
        hvd.allreduce(x, op=77)
    with pytest.raises(ValueError, match="not registered"):
        hvd.allgather(x, process_set=hvd.ProcessSet([0]))
    with pytest.raises(RuntimeError, match="only supports Average and Sum"):
        hvd.reducescatter(x, op=hvd.Max)
    y = hvd.allreduce(x, op=hvd.Max, name="held")
    held = hvd.allreduce_async(torch.ones(2), name="held.backward")
    with pytest.raises(ValueError, match=r"held\.backward"):
        y.sum().backward()
    hvd.synchronize(held)
    if hvd.size() > 1:
        # Rank 0 goes back through one of them, the others through the other.
        ys = [hvd.allreduce(x, op=op) for op in (hvd.Sum, hvd.Product)]
        with pytest.raises(hvd.HorovodInternalError, match="reduction"):
            ys[min(hvd.rank(), 1)].sum().backward()
        for y in ys:
            y.sum().backward()  # the job goes on
