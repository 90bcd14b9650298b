"""The engine: the only folder that knows time. It sees schedules, plans and networks, never YAML or a strategy."""
