"""What only Python can find wrong, on one rank: an error on all, at once, and all stay in step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from paths import ALL_PATHS, CONTROL_PATHS, only

import horoacc as hvd
from horoacc.errors import HorovodInternalError


def strided() -> Any:
    return np.ones((4, 4))[:, ::2]


def frozen() -> Any:
    array = np.ones(3)
    array.flags.writeable = False
    return array


ROWS = np.ones((6, 2))
FLOATS = np.ones(700, np.float32)
INT8 = hvd.Compression.int8
# By what goes wrong: the call that goes well, the one that does not, what is raised where it was
# made, and words of it.
Case = tuple[Callable[[Any], Any], Callable[[Any], Any], type[Exception], str]
CASES: dict[str, Case] = {
    "type": (
        lambda name: hvd.allreduce(ROWS, name=name),
        lambda name: hvd.allreduce(np.array(["text"]), name=name),
        ValueError, "not supported",
    ),
    "operation": (
        lambda name: hvd.allreduce(ROWS, name=name, op=hvd.Sum),
        lambda name: hvd.allreduce(ROWS, name=name, op=17),
        ValueError, "no reduction",
    ),
    "operation that is a list": (
        lambda name: hvd.allreduce_(np.ones(3), name=name, op=hvd.Sum),
        lambda name: hvd.allreduce_(np.ones(3), name=name, op=[hvd.Sum]),
        TypeError, "unhashable",
    ),
    "factor that is an array": (
        lambda name: hvd.allreduce_(np.ones(3), name=name, op=hvd.Sum),
        lambda name: hvd.allreduce_(np.ones(3), name=name, op=hvd.Sum, prescale_factor=np.ones(2)),
        TypeError, "converted",
    ),
    "factor": (
        lambda name: hvd.allreduce(ROWS, name=name),
        lambda name: hvd.allreduce(ROWS, name=name, prescale_factor="half"),
        ValueError, "half",
    ),
    "factor of a group": (
        lambda name: hvd.grouped_allreduce([ROWS, ROWS], name=name),
        lambda name: hvd.grouped_allreduce([ROWS, ROWS], name=name, postscale_factor=None),
        TypeError, "NoneType",
    ),
    "factor of a part": (
        lambda name: hvd.reducescatter(ROWS, name=name),
        lambda name: hvd.reducescatter(ROWS, name=name, prescale_factor="half"),
        ValueError, "half",
    ),
    "root": (
        lambda name: hvd.broadcast(ROWS, 0, name=name),
        lambda name: hvd.broadcast(ROWS, "first", name=name),
        TypeError, "interpreted as an integer",
    ),
    "large root": (
        lambda name: hvd.broadcast_(np.ones(3), 0, name=name),
        lambda name: hvd.broadcast_(np.ones(3), 1 << 40, name=name),
        ValueError, "1099511627776",
    ),
    "large split": (
        lambda name: hvd.alltoall(ROWS, [6] + [0] * (hvd.size() - 1), name=name),
        lambda name: hvd.alltoall(ROWS, [1 << 70] * hvd.size(), name=name),
        ValueError, "1180591620717411303424",
    ),
    "operation of a codec": (
        lambda name: hvd.allreduce(FLOATS, name=name, compression=INT8, op=hvd.Sum),
        lambda name: hvd.allreduce(FLOATS, name=name, compression=INT8, op=hvd.Max),
        ValueError, "Average and Sum only",
    ),
    "unknown operation of a codec": (
        lambda name: hvd.allreduce(FLOATS, name=name, compression=INT8),
        lambda name: hvd.allreduce(FLOATS, name=name, compression=INT8, op=17),
        ValueError, "no reduction",
    ),
    "factor of a codec": (
        lambda name: hvd.grouped_allreduce([FLOATS, FLOATS], name=name, compression=INT8),
        lambda name: hvd.grouped_allreduce(
            [FLOATS, FLOATS], name=name, compression=INT8, prescale_factor="half"
        ),
        ValueError, "half",
    ),
    "operation of a coded group": (
        lambda name: hvd.grouped_allreduce([FLOATS] * 3, name=name, compression=INT8),
        lambda name: hvd.grouped_allreduce([FLOATS] * 3, name=name, compression=INT8, op=hvd.Min),
        ValueError, "Average and Sum only",
    ),
    "dimensions": (
        lambda name: hvd.allreduce(ROWS, name=name),
        lambda name: hvd.allreduce(np.ones((1,) * 20), name=name),
        ValueError, "20 dimensions",
    ),
    "strides": (
        lambda name: hvd.allreduce_(np.ones((4, 2)), name=name),
        lambda name: hvd.allreduce_(strided(), name=name),
        ValueError, "contiguous",
    ),
    "read-only": (
        lambda name: hvd.broadcast_(np.ones(3), 0, name=name),
        lambda name: hvd.broadcast_(frozen(), 0, name=name),
        ValueError, "read-only",
    ),
    "member": (
        lambda name: hvd.grouped_allreduce([ROWS, ROWS], name=name),
        lambda name: hvd.grouped_allreduce([ROWS, object()], name=name),
        ValueError, "object",
    ),
    "gathered": (
        lambda name: hvd.allgather(ROWS, name=name),
        lambda name: hvd.allgather(np.array(["text"]), name=name),
        ValueError, "not supported",
    ),
    "splits": (
        lambda name: hvd.alltoall(ROWS, [6] + [0] * (hvd.size() - 1), name=name),
        lambda name: hvd.alltoall(ROWS, ["six"], name=name),
        ValueError, "six",
    ),
    "scattered": (
        lambda name: hvd.reducescatter(ROWS, name=name),
        lambda name: hvd.reducescatter(ROWS, name=name, op=hvd.Max),
        RuntimeError, "only supports",
    ),
    "object": (
        lambda name: hvd.broadcast_object(1, 0, name=name),
        lambda name: hvd.broadcast_object((one for one in "x"), 0, name=name),
        TypeError, "generator",
    ),
}  # fmt: skip


def one_rank_cannot(case: Case, name: str | None) -> None:
    good, bad, raised, words = case
    if hvd.rank() == 0:
        with pytest.raises(raised, match=words):
            bad(name)
    else:
        with pytest.raises(HorovodInternalError, match=words) as error:
            answer = good(name)
            if isinstance(answer, int):
                hvd.synchronize(answer)
        text = str(error.value)
        assert "rank 0" in text, text
        assert name is None or name in text, text


def in_step() -> None:
    """Calls without a name meet those that they should: the value says which one it was."""
    for count in range(3):
        got = hvd.allreduce(np.full(3, float(count)), op=hvd.Sum)
        assert got.tolist() == [count * hvd.size()] * 3


@pytest.mark.parametrize("env", ALL_PATHS)
@pytest.mark.ranks(2, 3, 4)
def test_one_rank_cannot_make_the_call() -> None:
    for what, case in CASES.items():
        for name in (None, f"bad {what}"):
            one_rank_cannot(case, name)
            in_step()
        case[0](f"bad {what}")  # the name works again


@pytest.mark.ranks(2, 3, 4)
def test_an_empty_group_of_one_rank() -> None:
    case: Case = (
        lambda name: hvd.grouped_allreduce([ROWS, ROWS], name=name),
        lambda name: hvd.grouped_allreduce([], name=name),
        ValueError, "at least one",
    )  # fmt: skip
    for name in (None, "empty"):
        one_rank_cannot(case, name)
        in_step()


@pytest.mark.ranks(2, 3, 4)
def test_all_ranks_cannot() -> None:
    for _, bad, raised, words in CASES.values():
        if words == "generator":
            continue  # only the root pickles
        for name in (None, "bad everywhere"):
            with pytest.raises(raised, match=words):
                bad(name)
    in_step()


@pytest.mark.ranks(3)
def test_in_a_process_set() -> None:
    some = hvd.add_process_set([0, 2])
    if hvd.rank() != 1:
        case: Case = (
            lambda name: hvd.allreduce(ROWS, name=name, process_set=some),
            lambda name: hvd.allreduce(ROWS, name=name, op=17, process_set=some),
            ValueError, "no reduction",
        )  # fmt: skip
        one_rank_cannot(case, None)
        got = hvd.allreduce(ROWS, process_set=some, op=hvd.Sum)
        assert np.array_equal(got, 2 * ROWS)
    in_step()
    hvd.remove_process_set(some)


@pytest.mark.parametrize(
    ("dtype", "op", "words"),
    [(99, 1, "unknown dtype 99"), (8, 17, "unknown reduction 17")],
)
@pytest.mark.ranks(2, 3, 4)
def test_what_only_another_binding_would_ask_for(dtype: int, op: int, words: str) -> None:
    from horoacc import _core, basics

    engine = basics.engine()
    array = np.ones(4, np.float32)
    member = (None, array.ctypes.data, array.ctypes.data, (4,), dtype if hvd.rank() == 0 else 8)
    if hvd.rank() == 0:
        with pytest.raises(ValueError, match=words):
            engine.submit(_core.ALLREDUCE, [member], op, keep=array)
    else:
        handle = engine.submit(_core.ALLREDUCE, [member], 1, keep=array)
        with pytest.raises(HorovodInternalError, match=f"rank 0.*{words}"):
            engine.wait(handle, 30)
        engine.release(handle)
    in_step()


@pytest.mark.ranks(2, 3, 4)
def test_an_error_of_the_core_is_told_once() -> None:
    """A codec's calls are exchanges of which the core refuses the first: the ranks stay in step."""
    codec = INT8 if hvd.rank() == 0 else hvd.Compression.none
    for _ in range(2):
        with pytest.raises(HorovodInternalError, match="rank 0"):
            hvd.allreduce(FLOATS, compression=codec, op=hvd.Sum)
        in_step()


@pytest.mark.ranks(2, 3, 4)
def test_a_device_that_is_none() -> None:
    for device in (np.int64(0), "cpu", None, -1):
        if hvd.rank() == 0 and not isinstance(device, (int, np.integer)):
            with pytest.raises(TypeError, match="integer"):
                hvd.join(device)
        else:
            hvd.join(device if isinstance(device, (int, np.integer)) else 0)
        in_step()


@pytest.mark.ranks(2, 3, 4)
def test_what_is_no_process_set() -> None:
    bad: Any = "nonsense"
    for call in (
        lambda: hvd.allreduce(ROWS, process_set=bad),
        lambda: hvd.grouped_allreduce([ROWS], process_set=bad),
        lambda: hvd.allreduce(FLOATS, process_set=bad, compression=INT8),
        lambda: hvd.broadcast(ROWS, 0, process_set=bad),
        lambda: hvd.reducescatter(ROWS, process_set=bad),
        lambda: hvd.barrier(bad),
    ):
        with pytest.raises(TypeError, match="must be a ProcessSet, not 'nonsense'"):
            call()
    in_step()


def torch_cases() -> dict[str, Case]:
    import torch

    import horoacc.torch as pt

    rows = torch.ones(6, 2)
    tracked = torch.ones(6, 2, requires_grad=True)
    sparse = torch.eye(6).to_sparse()
    return {
        "strides": (
            lambda name: pt.allreduce(rows, name=name),
            lambda name: pt.allreduce(torch.ones(2, 6).t(), name=name),
            ValueError, "contiguous",
        ),
        "layout": (
            lambda name: pt.allgather(rows, name=name),
            lambda name: pt.allgather(sparse, name=name),
            ValueError, "layout",
        ),
        "compressed": (
            lambda name: pt.allreduce(rows, name=name, compression=pt.Compression.fp16),
            lambda name: pt.allreduce("text", name=name, compression=pt.Compression.fp16),
            AttributeError, "dtype",
        ),
        "operation with a gradient": (
            lambda name: pt.allreduce(tracked, name=name),
            lambda name: pt.allreduce(tracked, name=name, op=17),
            ValueError, "no reduction",
        ),
        "operation of a codec with a gradient": (
            lambda name: pt.allreduce(tracked, name=name, compression=pt.Compression.int8),
            lambda name: pt.allreduce(
                tracked, name=name, compression=pt.Compression.int8, op=17
            ),
            ValueError, "no reduction",
        ),
        "operation of a coded group with a gradient": (
            lambda name: pt.grouped_allreduce(
                [tracked, tracked], name=name, compression=pt.Compression.int8
            ),
            lambda name: pt.grouped_allreduce(
                [tracked, tracked], name=name, compression=pt.Compression.int8, op=pt.Max
            ),
            ValueError, "Average and Sum only",
        ),
        "gathered with a gradient": (
            lambda name: pt.allgather(tracked, name=name),
            lambda name: pt.allgather(torch.ones((), requires_grad=True), name=name),
            ValueError, "dimension",
        ),
        "splits": (
            lambda name: pt.alltoall(rows, torch.tensor([6] + [0] * (hvd.size() - 1)), name=name),
            lambda name: pt.alltoall(rows, torch.tensor([[6]]), name=name),
            ValueError, "one dimension",
        ),
        "type of splits": (
            lambda name: pt.alltoall(tracked, [6] + [0] * (hvd.size() - 1), name=name),
            lambda name: pt.alltoall(tracked, torch.tensor([6.0]), name=name),
            ValueError, "int32",
        ),
        "conjugate": (
            lambda name: pt.broadcast_(torch.ones(3, dtype=torch.complex64), 0, name=name),
            lambda name: pt.broadcast_(torch.ones(3, dtype=torch.complex64).conj(), 0, name=name),
            ValueError, "conjugated",
        ),
        "scattered group with a gradient": (
            lambda name: pt.grouped_reducescatter([tracked, tracked], name=name),
            lambda name: pt.grouped_reducescatter([tracked, tracked], name=name, op=pt.Max),
            RuntimeError, "only supports",
        ),
        "sparse": (
            lambda name: pt.sparse_allreduce_async(sparse, name, pt.Sum)(),
            lambda name: pt.sparse_allreduce_async(sparse, name, pt.Max),
            ValueError, "averaged or summed",
        ),
    }  # fmt: skip


@pytest.mark.parametrize("env", [pytest.param({}, id="plain"), *only(CONTROL_PATHS, 2, 3)])
@pytest.mark.ranks(2, 3, 4, framework="horoacc.torch")
def test_torch() -> None:
    for what, case in torch_cases().items():
        for name in (None, f"bad {what}"):
            one_rank_cannot(case, name)
            in_step()
        case[0](f"bad {what}")
