"""The collectives of Keras: values, an argument that is not the default, and an error each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from lazy import hvd, keras, on_both, ranks, tf

pytestmark = [on_both, ranks(1, 2, 4)]


def array(value: Any) -> Any:
    return np.asarray(keras.ops.convert_to_numpy(value))


def mine(rank: int) -> Any:
    return np.arange(6, dtype=np.float64).reshape(3, 2) + rank


def in_both(call: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """The call, and on TensorFlow also in a tf.function."""
    yield call
    if keras.backend.backend() == "tensorflow":
        yield tf.function(call)


def test_allreduce() -> None:
    ranks = range(hvd.size())
    total = sum(mine(rank) for rank in ranks)
    for allreduce in in_both(hvd.allreduce):
        assert (array(allreduce(mine(hvd.rank()))) == total / hvd.size()).all()
        assert (array(allreduce(mine(hvd.rank()), average=False)) == total).all()
        found = allreduce(
            mine(hvd.rank()), name="scaled", op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5
        )
        assert (array(found) == total).all()
        assert keras.ops.is_tensor(found)
        found = allreduce(mine(hvd.rank()), compression=hvd.Compression.fp16)
        assert array(found).dtype == np.float64
        assert np.allclose(array(found), total / hvd.size(), atol=2.0**-8)
        with pytest.raises(ValueError, match="supersedes average"):
            allreduce(1.0, average=False, op=hvd.Sum)
    # Numbers, tensors and variables.
    assert float(hvd.allreduce(1.5 + hvd.rank(), op=hvd.Sum)) == 1.5 * hvd.size() + sum(ranks)
    tensor = keras.ops.convert_to_tensor(mine(hvd.rank()))
    assert (array(hvd.allreduce(tensor, op=hvd.Sum)) == total).all()
    variable = keras.Variable(mine(hvd.rank()), dtype="float64")
    assert (array(hvd.allreduce(variable, op=hvd.Sum)) == total).all()
    assert (array(variable) == mine(hvd.rank())).all()


def test_allgather() -> None:
    value = np.full((hvd.rank() + 1, 2), hvd.rank(), np.int32)
    wanted = np.concatenate([np.full((rank + 1, 2), rank) for rank in range(hvd.size())])
    for allgather in in_both(hvd.allgather):
        found = array(allgather(value, name="rows"))
        assert found.dtype == np.int32 and (found == wanted).all()
        if hvd.size() > 1:
            with pytest.raises(Exception, match=r"shape|dimension"):
                allgather(np.zeros((1, 2 + hvd.rank()), np.float32), name="ragged")


def test_broadcast() -> None:
    root = hvd.size() - 1
    for broadcast in in_both(hvd.broadcast):
        assert (array(broadcast(mine(hvd.rank()), root)) == mine(root)).all()
        assert (array(broadcast(mine(hvd.rank()), root_rank=0, name="first")) == mine(0)).all()
        with pytest.raises(Exception, match="root"):
            broadcast(1.0, hvd.size())


def test_reducescatter() -> None:
    rows = [3 // hvd.size() + (rank < 3 % hvd.size()) for rank in range(hvd.size())]
    begin = sum(rows[: hvd.rank()])
    part = slice(begin, begin + rows[hvd.rank()])
    total = sum(mine(rank) for rank in range(hvd.size()))
    for reducescatter in in_both(hvd.reducescatter):
        assert (array(reducescatter(mine(hvd.rank()))) == (total / hvd.size())[part]).all()
        found = reducescatter(mine(hvd.rank()), name="summed", op=hvd.Sum)
        assert (array(found) == total[part]).all()
        with pytest.raises(Exception, match="only supports Average and Sum"):
            reducescatter(mine(hvd.rank()), op=hvd.Adasum)


def test_broadcast_global_variables() -> None:
    with pytest.raises(RuntimeError, match=r"Callback|broadcast_variables"):
        hvd.broadcast_global_variables(0)
    if keras.backend.backend() == "torch":
        return  # it has no graphs
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("w", initializer=[float(hvd.rank())])
        send = hvd.broadcast_global_variables(root_rank=hvd.size() - 1)
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(send)
        assert session.run(variable) == [hvd.size() - 1]


def test_job() -> None:
    """What `horoacc` says of the job, under Keras' names."""
    import horoacc

    assert (hvd.rank(), hvd.size()) == (horoacc.rank(), horoacc.size())
    assert hvd.global_process_set is horoacc.global_process_set
    assert (hvd.Average, hvd.Sum, hvd.Adasum) == (0, 1, 2)
    assert hvd.allgather_object(hvd.rank()) == list(range(hvd.size()))
    assert keras.config.is_interactive_logging_enabled() == (hvd.rank() == 0)
