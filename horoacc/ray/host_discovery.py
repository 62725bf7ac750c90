"""The nodes of a Ray cluster as the hosts of an elastic job; those that are drained are left out.

Ray tells in no table which nodes are being drained. But it refuses to place anything there, so a
small task that is pinned to a node, of no resources, is the question: the answer comes from the
scheduler of this process's node within milliseconds, and the task itself is not waited for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError, TaskUnschedulableError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from horoacc.elastic.discovery import HostDiscovery

# Ray's refusals come within some milliseconds.
_REFUSAL_SECONDS = 0.05


class Node(NamedTuple):
    """A node that is alive."""

    id: str
    address: str
    names: frozenset[str]
    """Its address, its host's name, and what else Ray knows it by, as a resource `node:NAME`."""
    cpus: float
    gpus: float


def living_nodes() -> list[Node]:
    """The nodes of the cluster."""
    found = []
    for told in ray.nodes():
        if not told["alive"]:
            continue
        resources, address = told["Resources"], told["NodeManagerAddress"]
        known = [name.removeprefix("node:") for name in resources if name.startswith("node:")]
        names = frozenset({address, told.get("NodeManagerHostname", address), *known})
        cpus, gpus = resources.get("CPU", 0.0), resources.get("GPU", 0.0)
        found.append(Node(told.get("NodeID", address), address, names, cpus, gpus))
    return found


class RayHostDiscovery(HostDiscovery):
    """Finds the nodes of the Ray cluster, and how many workers each can take.

    The whole cluster is counted, whatever else uses it.
    """

    def __init__(
        self,
        use_gpu: bool = False,
        cpus_per_slot: float = 1,
        gpus_per_slot: float = 1,
        *,
        cpus_per_worker: float | None = None,
        gpus_per_worker: float | None = None,
    ) -> None:
        """Asks nothing yet.

        Args:
            use_gpu: Whether a worker needs GPUs.
            cpus_per_slot: The CPUs of a worker.
            gpus_per_slot: The GPUs of a worker.
            cpus_per_worker: Another name of `cpus_per_slot`.
            gpus_per_worker: Another name of `gpus_per_slot`.
        """
        self._cpus = cpus_per_slot if cpus_per_worker is None else cpus_per_worker
        self._gpus = (gpus_per_slot if gpus_per_worker is None else gpus_per_worker) * use_gpu
        self._probes: dict[str, Any] = {}
        self._refused: set[str] = set()  # last time

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Asks Ray.

        Returns:
            The number of workers by the nodes' addresses, for nodes that can take one at least.
        """
        slots: dict[str, int] = {}
        for node, count in self.find_nodes():
            slots[node.address] = slots.get(node.address, 0) + count
        return slots

    def find_nodes(self) -> list[tuple[Node, int]]:
        """As `find_available_hosts_and_slots`, but node by node."""
        found = [(node, self._slots(node)) for node in living_nodes()]
        found = [(node, slots) for node, slots in found if slots]
        drained = self._drained([node.id for node, _ in found])
        return [(node, slots) for node, slots in found if node.id not in drained]

    def _slots(self, node: Node) -> int:
        rooms = [(node.cpus, self._cpus), (node.gpus, self._gpus)]
        return min((int(there // needed) for there, needed in rooms if needed), default=1)

    def _drained(self, nodes: Iterable[str]) -> set[str]:
        """Those of the nodes where Ray places nothing any more."""
        if not ray.is_initialized():
            return set()
        probes = {node: self._probes.get(node) or _probe(node) for node in nodes}
        self._probes = dict(probes)
        refs = list(probes.values())
        done, _ = (
            ray.wait(refs, num_returns=len(refs), timeout=_REFUSAL_SECONDS) if refs else ([], [])
        )
        # An answer that is late changes nothing yet.
        refused = {node for node in self._refused & probes.keys() if probes[node] not in done}
        for node, probe in probes.items():
            if probe in done:
                del self._probes[node]
                try:
                    ray.get(probe)
                except TaskUnschedulableError:
                    refused.add(node)
                except RayError:
                    continue  # the node died, as Ray will tell
        self._refused = refused
        return refused


def _nothing() -> None:
    return


def _probe(node: str) -> Any:
    task = ray.remote(_nothing).options(
        num_cpus=0,
        max_retries=0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
    )
    return task.remote()


class NodeHosts(HostDiscovery):
    """The hosts of one job, and which node each is.

    A node that comes back under an old address is another host, `ADDRESS#2`: nothing that happened
    to the old one counts against it.
    """

    def __init__(self, discovery: HostDiscovery) -> None:
        """Asks nothing yet.

        Args:
            discovery: Finds nodes; of another class than `RayHostDiscovery`, by names that Ray
                knows.
        """
        self._discovery = discovery
        self._names: dict[str, str] = {}  # by node
        self._looked: dict[str, int] | None = None
        self.slots: dict[str, int] = {}
        """Of the last answer."""

    def look(self) -> dict[str, int]:
        """Gives the next answer of `find_available_hosts_and_slots` beforehand."""
        self._looked = None
        self._looked = self.find_available_hosts_and_slots()
        return self._looked

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Asks the discovery.

        Returns:
            The number of workers by host.

        Raises:
            ValueError: A host is no node of the cluster, or has no number of slots.
        """
        if self._looked is not None:
            looked, self._looked = self._looked, None
            return looked
        if isinstance(self._discovery, RayHostDiscovery):
            self.slots = {self._name(n): slots for n, slots in self._discovery.find_nodes()}
            return dict(self.slots)
        slots = self._discovery.find_available_hosts_and_slots()
        for host, count in slots.items():
            self.node_of(host)
            if not isinstance(count, int) or count < 1:
                raise ValueError(f"host {host} has {count!r} slots, not one at least")
        self.slots = dict(slots)
        return dict(slots)

    def node_of(self, host: str) -> str:
        """The node that a host is. ValueError: none."""
        for node, name in list(self._names.items()):  # the discovery's thread adds some
            if name == host:
                return node
        nodes = living_nodes()
        for found in nodes:
            if host in found.names:
                return found.id
        known = ", ".join(node.address for node in nodes)
        raise ValueError(f"host {host} is no node of this Ray cluster, which has {known}")

    def _name(self, node: Node) -> str:
        if node.id not in self._names:
            taken = [n for n in self._names.values() if n.partition("#")[0] == node.address]
            count = len(taken) + 1
            self._names[node.id] = node.address if count == 1 else f"{node.address}#{count}"
        return self._names[node.id]
