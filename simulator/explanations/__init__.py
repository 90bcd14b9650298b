"""What every key means: of each command's JSON output (``outputs.yaml``) and of a scenario (its JSON Schema)."""
