"""The errors a user can meet. The command line turns each into one message and an exit code.

None of them defines ``__init__``: SimPy rebuilds an exception as ``type(e)(*e.args)`` when it crosses
a process, so an error with other arguments would be lost on the way.
"""


class SimulatorError(Exception):
    """Any failure that is reported to the user without a traceback. Exit code 2 unless said."""


class ScenarioError(SimulatorError, ValueError):
    """Bad input: a YAML file, a command-line value, a topology. Exit code 2."""


class UnitError(ScenarioError):
    """A quantity without a unit, with the wrong one, or out of range. Exit code 2."""


class NetworkError(ScenarioError):
    """A topology that does not describe a usable network (disconnected, self loop, ...). Exit code 2."""


class UnsupportedError(ScenarioError):
    """A valid question that this version does not answer yet, said instead of guessed. Exit code 2."""


class DeadlockError(SimulatorError):
    """The simulation stopped with work left; the message names who waits for what. Exit code 3."""


class InternalError(SimulatorError):
    """A result that breaks a physical law: a bug in the simulator, never the user's fault. Exit code 3."""
