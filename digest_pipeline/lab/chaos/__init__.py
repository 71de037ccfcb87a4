"""Chaos: several senders on one ledger, everything that can go wrong at random, and then the same verdict.

``schedule`` is what happens, a pure function of a seed; ``crew`` does it to real processes; ``play`` puts
both together and judges like the crash harness.
"""
