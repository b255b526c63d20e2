"""The hosts of a Ray cluster (https://docs.ray.io) as places to measure in.

specgate, the pair and the engines have to be on each of them already: the run's beginning and the samples are all that
is sent.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from specgate.errors import EnvironmentRefused, UsageError
from specgate.fleet.local import LocalMachines
from specgate.fleet.machines import Files, NodeLost, Slot
from specgate.machine import host


class RayMachines:
    """A slot for each GPU of a cluster's hosts, or for each of its CPUs where it has no GPU; `count` of them at most.

    `address`: of the cluster's head, as `ray.init` takes it; "auto" for the one that this host belongs to. Raises
    EnvironmentRefused where Ray is missing or the cluster does not answer.
    """

    def __init__(self, address: str = "auto", count: int | None = None) -> None:
        self._ray = imported()
        try:
            self._ray.init(address=address, log_to_driver=False, configure_logging=False)
        except Exception as error:  # Ray has no base class for what can go wrong here
            hint = "start one with `ray start --head`, and `ray start --address=HEAD:6379` on each other host"
            raise EnvironmentRefused(f"no Ray cluster at {address}: {first_line(error)}", hint=hint) from error
        self._running: dict[Slot, Any] = {}
        self._lock, self._stopped = threading.Lock(), False
        self._nodes = dict(self._slots())
        self.slots = tuple(self._nodes)[:count]
        if count is not None and count > len(self.slots):
            self.stop()
            raise UsageError(f"--slots {count}: the cluster has {len(self.slots)}", hint="see `ray status`")

    def _slots(self) -> Iterator[tuple[Slot, tuple[str, str]]]:
        """Each slot, with the number of its node and the resource that it takes: "GPU" or "CPU"."""
        alive = [node for node in self._ray.nodes() if node["Alive"]]
        kind = "GPU" if any(node["Resources"].get("GPU") for node in alive) else "CPU"
        identities = {node["NodeID"]: self._on(node["NodeID"], who, num_cpus=0).remote() for node in alive}
        for node in alive:
            identity = self._ray.get(identities[node["NodeID"]])
            for number in range(int(node["Resources"].get(kind, 0))):
                name = f"{node['NodeManagerHostname']} {kind} {number} ({node['NodeID'][:6]})"
                # Which of a host's GPUs a task gets is Ray's choice.
                yield Slot(name, f"{identity} {kind} {number}"), (node["NodeID"], kind)

    def _on(self, node: str, function: Callable[..., Any], **needs: int) -> Any:
        """`function`, to be called on that node alone and once at most."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        where = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        return self._ray.remote(function).options(scheduling_strategy=where, max_retries=0, **needs)

    def carry_out(self, slot: Slot, files: Files) -> Files:
        from ray.exceptions import RayError

        node, kind = self._nodes[slot]
        remote = self._on(node, there, **({"num_gpus": 1, "num_cpus": 0} if kind == "GPU" else {"num_cpus": 1}))
        with self._lock:
            if self._stopped:
                raise NodeLost("the fleet is ending")
            task = self._running[slot] = remote.remote(dict(files))
        try:
            left = self._ray.get(task)
        except RayError as error:
            raise NodeLost(first_line(error)) from error
        finally:
            with self._lock:
                self._running.pop(slot, None)
        if isinstance(left, str):
            raise NodeLost(left)
        return dict(left)

    def stop(self) -> None:
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            for task in self._running.values():
                with contextlib.suppress(Exception):  # it may just have ended
                    self._ray.cancel(task, force=True)
        self._ray.shutdown()


def who() -> str:
    """On a host of the cluster: which one it is."""
    return host.identity()


def there(files: dict[str, bytes]) -> dict[str, bytes] | str:
    """On a host of the cluster: measure in a process of its own, and return what it left, or how it was lost."""
    machines = LocalMachines(1)
    try:
        return dict(machines.carry_out(machines.slots[0], files))
    except NodeLost as lost:
        return str(lost)
    finally:
        machines.stop()


def imported() -> Any:
    """Ray. Raises EnvironmentRefused where it is not installed."""
    try:
        import ray
    except ImportError as error:
        hint = "pip install '.[fleet]' in the checkout; --on gpus needs no Ray"
        raise EnvironmentRefused("--on ray: Ray is not installed", hint=hint) from error
    return ray


def first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200] if str(error).strip() else 'no reason'}"
