"""Benchmarks: what the guarantees cost, against the least that could do the same work without them."""
