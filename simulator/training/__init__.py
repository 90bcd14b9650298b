"""What one rank computes in a training step, how long it takes, and what it keeps in memory.

Knows no network and no clock.
"""
