"""The collectives of Keras: values, an argument that is not the default, and an error each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from lazy import hvd, keras, on_both, ranks

pytestmark = [on_both, ranks(1, 2, 4)]


def array(value: Any) -> Any:
    return np.asarray(keras.ops.convert_to_numpy(value))


def mine(rank: int) -> Any:
    return np.arange(6, dtype=np.float64).reshape(3, 2) + rank


def test_allreduce() -> None:
    ranks = range(hvd.size())
    total = sum(mine(rank) for rank in ranks)
    assert (array(hvd.allreduce(mine(hvd.rank()))) == total / hvd.size()).all()
    assert (array(hvd.allreduce(mine(hvd.rank()), average=False)) == total).all()
    found = hvd.allreduce(
        mine(hvd.rank()), name="scaled", op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5
    )
    assert (array(found) == total).all()
    assert keras.ops.is_tensor(found)
    found = hvd.allreduce(mine(hvd.rank()), compression=hvd.Compression.fp16)
    assert array(found).dtype == np.float64
    assert np.allclose(array(found), total / hvd.size(), atol=2.0**-8)
    # Numbers, tensors and variables.
    assert float(hvd.allreduce(1.5 + hvd.rank(), op=hvd.Sum)) == 1.5 * hvd.size() + sum(ranks)
    tensor = keras.ops.convert_to_tensor(mine(hvd.rank()))
    assert (array(hvd.allreduce(tensor, op=hvd.Sum)) == total).all()
    variable = keras.Variable(mine(hvd.rank()), dtype="float64")
    assert (array(hvd.allreduce(variable, op=hvd.Sum)) == total).all()
    assert (array(variable) == mine(hvd.rank())).all()
    with pytest.raises(ValueError, match="supersedes average"):
        hvd.allreduce(1.0, average=False, op=hvd.Sum)


def test_allgather() -> None:
    value = np.full((hvd.rank() + 1, 2), hvd.rank(), np.int32)
    wanted = np.concatenate([np.full((rank + 1, 2), rank) for rank in range(hvd.size())])
    found = array(hvd.allgather(value, name="rows"))
    assert found.dtype == np.int32 and (found == wanted).all()
    if hvd.size() > 1:
        with pytest.raises(Exception, match=r"shape|dimension"):
            hvd.allgather(np.zeros((1, 2 + hvd.rank()), np.float32), name="ragged")


def test_broadcast() -> None:
    root = hvd.size() - 1
    assert (array(hvd.broadcast(mine(hvd.rank()), root)) == mine(root)).all()
    assert (array(hvd.broadcast(mine(hvd.rank()), root_rank=0, name="first")) == mine(0)).all()
    with pytest.raises(Exception, match="root"):
        hvd.broadcast(1.0, hvd.size())


def test_reducescatter() -> None:
    rows = [3 // hvd.size() + (rank < 3 % hvd.size()) for rank in range(hvd.size())]
    begin = sum(rows[: hvd.rank()])
    part = slice(begin, begin + rows[hvd.rank()])
    total = sum(mine(rank) for rank in range(hvd.size()))
    assert (array(hvd.reducescatter(mine(hvd.rank()))) == (total / hvd.size())[part]).all()
    found = hvd.reducescatter(mine(hvd.rank()), name="summed", op=hvd.Sum)
    assert (array(found) == total[part]).all()
    with pytest.raises(Exception, match="only supports Average and Sum"):
        hvd.reducescatter(mine(hvd.rank()), op=hvd.Adasum)


def test_broadcast_global_variables() -> None:
    with pytest.raises(RuntimeError, match=r"Callback|broadcast_variables"):
        hvd.broadcast_global_variables(0)


def test_job() -> None:
    """What `horoacc` says of the job, under Keras' names."""
    import horoacc

    assert (hvd.rank(), hvd.size()) == (horoacc.rank(), horoacc.size())
    assert hvd.global_process_set is horoacc.global_process_set
    assert (hvd.Average, hvd.Sum, hvd.Adasum) == (0, 1, 2)
    assert hvd.allgather_object(hvd.rank()) == list(range(hvd.size()))
    assert keras.config.is_interactive_logging_enabled() == (hvd.rank() == 0)
