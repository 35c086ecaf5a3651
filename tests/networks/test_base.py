"""A fabric without doors stands for the machine as it is; doors travel to other processes."""

from __future__ import annotations

import pickle

from tutti.networks.base import Door, Fabric
from tutti.networks.hosts import HostDoor


def test_without_doors_everybody_is_where_he_was() -> None:
    door = Fabric().door(3)
    door.enter()
    assert door == Door("lo", own_interface=False)


def test_every_worker_has_the_door_of_his_rank() -> None:
    doors = (HostDoor("eth0", True, "/proc/1/fd/5"), HostDoor("eth0", True, "/proc/1/fd/6", "/sys/fs/cgroup/x"))
    fabric = Fabric(doors, "10.0.0.1")
    assert [fabric.door(rank) for rank in range(2)] == list(doors)
    assert pickle.loads(pickle.dumps(doors)) == doors
