"""Property tests draw the same examples on every run, and no test fails because a machine is slow."""

import gc

import pytest
from hypothesis import settings

settings.register_profile("same-every-time", derandomize=True, deadline=None, database=None)
#: A third as many examples where a test does not say how many; a run of all tests draws them all.
settings.register_profile("fast-tier", settings.get_profile("same-every-time"), max_examples=33)


def pytest_configure(config: pytest.Config) -> None:
    """The fast tier is what ``-m "not slow"`` leaves."""
    settings.load_profile("fast-tier" if "not slow" in config.option.markexpr else "same-every-time")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Modules and thousands of collected tests live to the end: the garbage collector need not look at them again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Nor at what a module has simulated and keeps for its tests: some of it is gigabytes."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()
