# mypy: disable-error-code="import-not-found,misc"
"""Process groups of a real run on gloo, made once and used by every job that wants the same ranks. Needs torch.

``workers`` is how many collectives of one group gloo runs at once. torch's default is 2 worker threads per group (torch
2.13: a third thread there is the device's); with 1 a group runs one collective at a time, in launch order, as a
communicator of NCCL does. Two at once share the links: the first of two bucket reductions then ends later, both
together end when they would.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh

TORCH_WORKERS = 2


class _OneWorker(distributed_c10d.ProcessGroupGloo):
    """Gloo with one worker thread. ``init_process_group`` offers no such option for gloo, its C++ constructor does."""

    def __init__(self, store: Any, rank: int, size: int, timeout: Any) -> None:
        options = distributed_c10d.ProcessGroupGloo._Options()
        options._threads, options._timeout = 1, timeout
        gloo, interface = distributed_c10d.ProcessGroupGloo, os.environ.get("GLOO_SOCKET_IFNAME")
        # the constructor without options heeds the variable, the default device does not
        options._devices = [gloo.create_device(interface=interface) if interface else gloo.create_default_device()]
        super().__init__(store, rank, size, options)


@contextmanager
def _gloo(workers: int) -> Any:
    """Groups made meanwhile have so many workers."""
    usual = distributed_c10d.ProcessGroupGloo
    if workers not in (1, TORCH_WORKERS):
        raise ValueError(f"workers {workers}: expected 1 or {TORCH_WORKERS}")
    if workers == 1:
        distributed_c10d.ProcessGroupGloo = _OneWorker
    try:
        yield
    finally:
        distributed_c10d.ProcessGroupGloo = usual


class Groups:
    """The groups that this process is in. Every rank must ask for the same ones in the same order."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self._groups: dict[tuple[tuple[tuple[int, ...], ...], int], Any] = {}
        self._meshes: dict[tuple[tuple[int, ...], tuple[int, ...], int], Any] = {}

    def all(self, workers: int) -> Any:
        """The group of all ranks."""
        return self.mine([tuple(range(self.world))], workers)

    def mine(self, partition: Sequence[Sequence[int]], workers: int) -> Any:
        """Of the groups that ``partition`` cuts the ranks into, that of this rank. None where it is in none."""
        key = (tuple(map(tuple, partition)), workers)
        if key not in self._groups:
            with _gloo(workers):
                made = [(ranks, dist.new_group(list(ranks))) for ranks in key[0]]
            self._groups[key] = next((group for ranks, group in made if self.rank in ranks), None)
        return self._groups[key]

    def mesh(self, ranks: Sequence[int], shape: Sequence[int], group: Any, workers: int) -> Any:
        """A DeviceMesh of ``ranks``, whose group is ``group``, in one or two dimensions.

        Two: (replicas, ranks of one replica, which are neighbours). Raises ValueError where the shape does not fit.
        """
        key = (tuple(ranks), tuple(shape), workers)
        if key not in self._meshes:
            self._meshes[key] = self._mesh(torch.tensor(ranks), key[1], group, workers)
        return self._meshes[key]

    def _mesh(self, ranks: Any, shape: tuple[int, ...], group: Any, workers: int) -> Any:
        if len(shape) not in (1, 2) or torch.Size(shape).numel() != len(ranks):
            raise ValueError(f"mesh {list(shape)}: expected one or two numbers whose product is {len(ranks)}")
        ranks = ranks.reshape(shape)
        if len(shape) == 1:
            return DeviceMesh.from_group(group, "cpu", mesh=ranks, mesh_dim_names=("shard",))
        groups = [self.mine(ranks.t().tolist(), workers), self.mine(ranks.tolist(), workers)]
        return DeviceMesh.from_group(groups, "cpu", mesh=ranks, mesh_dim_names=("replicate", "shard"))
