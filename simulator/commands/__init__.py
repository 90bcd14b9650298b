"""One module per command with a function of the same name: what it does. What it accepts is in ``simulator.cli``."""
