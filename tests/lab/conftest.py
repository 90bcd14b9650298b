"""The lab needs Linux, iproute2 and either root or user namespaces; where it cannot be built its tests say why."""

import pytest

from simulator.lab.shaped import unavailable


@pytest.fixture(scope="session")
def lab_here() -> None:
    """Skips where no lab can be opened, with the reason."""
    reason = unavailable()
    if reason:
        pytest.skip(reason)
