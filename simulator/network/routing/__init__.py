"""Ways to route, by the name that a network carries in ``routing``. Each maps arrays of pairs to links."""

from __future__ import annotations

from collections.abc import Callable

from simulator.network.routing.dimension_order import dimension_order
from simulator.network.routing.shortest import shortest
from simulator.network.routing.up_down import up_down, up_down_by_destination
from simulator.network.routing.wiring import Router, Wiring

ROUTINGS: dict[str, Callable[[Wiring], Router]] = {
    "up-down": up_down,
    "up-down-by-destination": up_down_by_destination,
    "dimension-order": dimension_order,
    "shortest": shortest,
}
