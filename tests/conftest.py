"""Property tests draw the same examples on every run, and no test fails because a machine is slow."""

from hypothesis import settings

settings.register_profile("same-every-time", derandomize=True, deadline=None, database=None)
settings.load_profile("same-every-time")
