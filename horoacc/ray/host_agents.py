"""The agents of an elastic job on Ray: an actor on each node, with the resources of its workers."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from horoacc import dropin
from horoacc.launcher.host_agent import ENDED, HostAgent
from horoacc.ray.host_discovery import NodeHosts
from horoacc.ray.ray_errors import one_line


class RayAgents:
    """Starts agents, for a job of this process's: a `Cluster` of `caller_agents`."""

    def __init__(
        self,
        hosts: NodeHosts,
        call: bytes,
        resources: Callable[[int], dict[str, float]],
        environ: Mapping[str, str],
        take: Callable[[str, bytes], None],
    ) -> None:
        """Starts none yet.

        Args:
            hosts: The hosts of the job.
            call: The pickled function of its workers.
            resources: What so many workers need: `num_cpus` and `num_gpus`.
            environ: Variables for all, which count more than the job's.
            take: Takes what workers send. Threads call it.
        """
        self.address = str(ray.util.get_node_ip_address())
        self.discovery = hosts
        self._call = ray.put(call)
        self._resources = resources
        self._environ = environ
        self._take = take
        self._as_horovod = dropin.installed()
        self._actors: dict[str, Any] = {}
        self._prepared: dict[str, Any] = {}
        self._threads: list[threading.Thread] = []

    def prepare(self, hosts: Iterable[str]) -> None:
        """Starts the actors of hosts which will have agents, while the job's process starts."""
        for host in hosts:
            self._actors[host] = self._prepared[host] = self._actor(host)

    def start_agent(
        self, host: str, number: int, environ: Mapping[str, str], lost: Callable[[str], None]
    ) -> None:
        """Starts an agent; `lost` is told why, if it ends. ValueError: the host is no node."""
        actor = self._prepared.pop(host, None) or self._actor(host)
        self._actors[host] = actor
        told = actor.run.options(num_returns="streaming").remote(
            number, host, {**environ, **self._environ}, self._call, self._as_horovod
        )
        thread = threading.Thread(
            target=self._listen, args=(host, actor, told, lost), name="horoacc-agent", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def _actor(self, host: str) -> Any:
        options = ray.remote(HostAgent).options(
            **self._resources(self.discovery.slots.get(host, 1)),
            scheduling_strategy=NodeAffinitySchedulingStrategy(
                self.discovery.node_of(host), soft=False
            ),
        )
        return options.remote()

    def stop_agent(self, host: str) -> None:
        """Ends the agent of a host, and what it has started."""
        self._prepared.pop(host, None)
        if (actor := self._actors.pop(host, None)) is not None:
            ray.kill(actor)

    def close(self, seconds: float) -> None:
        """Ends all agents, after they have had some time to end by themselves."""
        until = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        for host in list(self._actors):
            self.stop_agent(host)

    def _listen(
        self, host: str, actor: Any, told: Iterator[Any], lost: Callable[[str], None]
    ) -> None:
        why = "its actor has ended"
        try:
            for ref in told:
                name, body = ray.get(ref)
                if name == ENDED:
                    why = f"its agent ended with code {body.decode()}"
                else:
                    self._take(name, body)
        except RayError as error:
            why = one_line(error)
        finally:
            if self._actors.get(host) is actor:
                self._actors.pop(host, None)  # stop_agent may have done it
            lost(why)
            with contextlib.suppress(RayError):
                ray.kill(actor)
