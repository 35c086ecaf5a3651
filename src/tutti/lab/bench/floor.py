"""What no route can be faster than: the links where the network has a rate, else this machine's memory.

Over links of a known rate it is the least bytes that any algorithm must send over the busiest one, and one latency. On
loopback there is no link. Bytes that change workers are copied in memory at least once there, so the floor is the time
in which all workers, at once, copy the least bytes of any algorithm; how fast they copy is measured for every size.
"""

from __future__ import annotations

from tutti.collectives.base import Collective
from tutti.lab.routes import least_seconds, least_total
from tutti.networks.base import Network
from tutti.networks.hosts import Hosts


def find_floor(operation: str, nbytes: int, workers: int, network: Network, copy: float) -> float:
    """Seconds; `copy` is how long all workers at once take to copy a buffer of this size."""
    rates = find_rates(network, workers)
    if rates is None:
        return copy * least_total(operation, workers) / workers
    return least_seconds(operation, nbytes, rates, find_latency(network))


def predict(route: Collective, operation: str, nbytes: int, workers: int, network: Network) -> float | None:
    """The route's time in the α–β model, where all links have the same rate."""
    rates = find_rates(network, workers)
    if rates is None or len(set(rates)) > 1:
        return None
    return route.cost(workers, nbytes, operation).seconds(find_latency(network), rates[0])


def describe_floor(network: Network) -> str:
    if has_rates(network):
        return (
            "floor: the least bytes of any algorithm over the busiest link, at its rate, and one latency; "
            "a link that was idle lets some 32 KiB pass at once"
        )
    return "floor: the least bytes of any algorithm, copied once in this machine's memory by all workers at once"


def has_rates(network: Network) -> bool:
    return isinstance(network, Hosts) and network.rate is not None


def find_rates(network: Network, workers: int) -> list[float] | None:
    """Bytes per second of every worker's link; None where there is a link without a rate."""
    if not isinstance(network, Hosts) or network.rate is None:
        return None
    bits = [network.rate_of(worker, workers) or network.rate for worker in range(workers)]
    return [rate / 8 for rate in bits]


def find_latency(network: Network) -> float:
    return network.latency if isinstance(network, Hosts) else 0.0
