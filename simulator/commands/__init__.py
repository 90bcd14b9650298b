"""One module per command; each holds a click command of the same name."""
