"""A user's own nccl-tests log -> rows -> the constants that those rows have: latency, bus bandwidth, efficiency."""
