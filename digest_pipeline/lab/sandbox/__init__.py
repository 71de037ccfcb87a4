"""A real HTTP mail API in a process of its own, whose store says what was truly accepted.

``server`` answers, ``intake`` decides, ``store`` remembers; ``faults`` is what can go wrong on
purpose; ``process`` starts, kills and restarts it; ``control`` scripts it; ``oracle`` reads the
store without it. The wire API is described in ``server`` and in docs/sandbox.md.
"""
