"""What the host thread costs: seconds to issue a kernel and a collective, and where it waits for the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from simulator.device import DeviceSpec
from simulator.plan import COMPUTE_LANE, Compute, Task
from simulator.scenario import Scenario
from simulator.strategies.step import HostCosts

#: By the framework of a device. PyTorch: a simple operation takes 5 to 7 us (pytorch/pytorch issue 41383), about 4 us
#: on CUDA (issue 82793): 6 us per kernel, uncertain, as it depends on the CPU and on what an operation does. A
#: collective took 70 us of CPU time with a stream of its own and 35 us without (pytorch/pytorch pull 147820, on AMD
#: GPUs; synchronous calls go without since pull 150398, torch 2.8): 35 us, uncertain. XLA compiles a whole step into
#: one program and issues that.
FRAMEWORKS = {
    "pytorch": HostCosts(kernel_s=6e-6, collective_s=35e-6),
    "xla": HostCosts(),
}  # fmt: skip


def host_costs(scenario: Scenario, device: DeviceSpec | None) -> HostCosts:
    """Costs of the scenario's host threads; nothing for measured layers (device None) unless the scenario says."""
    usual = FRAMEWORKS[device.framework] if device is not None else HostCosts()
    host = scenario.cluster.host
    kernel_s = usual.kernel_s if host.kernel_launch is None else host.kernel_launch
    collective_s = usual.collective_s if host.collective_launch is None else host.collective_launch
    return HostCosts(kernel_s=kernel_s / host.speed, collective_s=collective_s / host.speed)


def with_syncs(tasks: Sequence[Task]) -> tuple[Task, ...]:
    """The same tasks where the host waits at the end of each micro-batch, as a script does that calls ``loss.item()``.

    Then all that was issued to the compute stream is waited for, before the next micro-batch's first forward or the
    gathering of what it needs.
    """
    return tuple(_synced(tasks))


def _synced(tasks: Sequence[Task]) -> Iterator[Task]:
    """After a backward, the first task of another forward is where the next micro-batch begins."""
    last, behind = "", False
    for number, task in enumerate(tasks):
        if behind and _begins(tasks, number):
            yield replace(task, host_after=(*task.host_after, last))
            behind = False
        else:
            yield task
        if task.lane == COMPUTE_LANE:
            last = task.name
            behind = task.kind == "backward" or (behind and task.kind != "forward")


def _begins(tasks: Sequence[Task], number: int) -> bool:
    """Whether a micro-batch begins here: a forward, or weights gathered for one before any other backward."""
    task = tasks[number]
    if isinstance(task, Compute):
        return task.kind == "forward"
    if task.op != "all_gather":
        return False
    ahead = (later.kind for later in tasks[number:] if later.kind in {"forward", "backward", "optimizer"})
    return next(ahead, "") == "forward"
