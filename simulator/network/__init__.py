"""Topology spec -> frozen graph of GPUs, NICs and switches, and the routes through it. No time, no collectives."""
