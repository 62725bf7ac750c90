"""`@pytest.mark.ranks(1, 2, 4)`: the test body runs in every rank of a job.

Keyword arguments of the mark: `env`, variables of the ranks; `framework`, the module whose init()
they call (`horoacc` by default); `seconds`, how long the body may take. A parameter named `env`
adds to the variables and one named `ranks` may be read by the body. The mark `only_ranks(2, 3)` of
a parameter's value leaves out its other sizes.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent / "ranks"))
sys.path.insert(0, str(Path(__file__).parent / "rank_pool"))

from fork_server_process import START_SECONDS
from pool import BodyFailed, BodySkipped, Pools

# Keras, and so TensorFlow, imports two large packages wherever they are, for more than a second in
# each of the tests' many processes. To all of them but those of the examples they are absent.
ABSENT = str(Path(__file__).parent / "absent")
sys.path.insert(0, ABSENT)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [ABSENT, os.environ.get("PYTHONPATH")]))

pools_key = pytest.StashKey[Pools]()
BODY_SECONDS = 400.0


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "ranks(*sizes, env=None, framework='horoacc', seconds=400): run in every rank"
    )
    config.addinivalue_line("markers", "only_ranks(*sizes): leave out other sizes of `ranks`")
    config.stash[pools_key] = Pools()
    # A shell starts background jobs like this, and nohup; what a test starts would inherit it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[pools_key].close()


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    mark = metafunc.definition.get_closest_marker("ranks")
    if mark is not None:
        # Bodies need not take what only decides where they run.
        for name in ("ranks", "env"):
            if name not in metafunc.fixturenames:
                metafunc.fixturenames.append(name)
        given = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
        if not any("env" in names for names in given):
            metafunc.parametrize("env", [{}], ids=["plain"])
        metafunc.parametrize("ranks", mark.args, ids=lambda size: f"{size}ranks")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if _wanted(item)]
    for item in items:
        # The pool tells more than pytest's own limit, which must leave it the time to do so.
        mark = item.get_closest_marker("ranks")
        if mark is not None and item.get_closest_marker("timeout") is None:
            seconds = mark.kwargs.get("seconds", BODY_SECONDS) + 2 * START_SECONDS
            item.add_marker(pytest.mark.timeout(seconds))
    # Bodies of equal ranks run one after the other, so that few pools live at a time.
    items.sort(key=_pool_order)


def _wanted(item: pytest.Item) -> bool:
    if item.get_closest_marker("ranks") is None:
        return True
    assert isinstance(item, pytest.Function)
    size = item.callspec.params["ranks"]
    return all(size in mark.args for mark in item.iter_markers("only_ranks"))


def _pool_order(item: pytest.Item) -> tuple[Any, ...]:
    mark = item.get_closest_marker("ranks")
    if mark is None or not isinstance(item, pytest.Function):
        return (0,)
    return (
        1,
        mark.kwargs.get("framework", "horoacc"),
        *_variables(item),
        item.callspec.params["ranks"],
    )


def _variables(item: pytest.Function) -> tuple[Any, ...]:
    mark = item.get_closest_marker("ranks")
    assert mark is not None
    env = dict(mark.kwargs.get("env") or {}) | dict(item.callspec.params.get("env") or {})
    return (tuple(sorted(env.items())),)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    mark = pyfuncitem.get_closest_marker("ranks")
    if mark is None:
        return None
    __tracebackhide__ = True
    size = pyfuncitem.callspec.params["ranks"]
    pool = pyfuncitem.config.stash[pools_key].get(
        size, mark.kwargs.get("framework", "horoacc"), dict(_variables(pyfuncitem)[0])
    )
    wanted = inspect.signature(pyfuncitem.obj).parameters
    given = pyfuncitem.funcargs  # a parameter with a default may not be
    arguments = {name: given[name] for name in wanted if name in given}
    name = pyfuncitem.obj.__qualname__
    failed = skipped = ""
    try:
        pool.run(pyfuncitem.path, name, arguments, mark.kwargs.get("seconds", BODY_SECONDS))
    except BodyFailed as failure:
        failed = str(failure)
    except BodySkipped as reason:
        skipped = str(reason)
    if failed:
        pytest.fail(failed, pytrace=False)
    if skipped:
        pytest.skip(skipped)
    return True


@pytest.fixture
def pools(request: pytest.FixtureRequest) -> Iterator[Pools]:
    """The session's pools, for tests that look at what the ranks returned."""
    yield request.config.stash[pools_key]
