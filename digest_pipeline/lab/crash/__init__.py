"""The crash harness: what is broken where (``cells``), how (``inflict``), and what must hold after it.

A cell stages one small period of its own (``stage``), is disturbed once at a named point (``inflict``)
or led through a sequence of failures (``sequences``), is recovered as production would (``recover``),
read (``record``) and judged by the provider's own store (``verdict``). ``report`` tells people and
programs; ``provider`` is what a team implements to try its own gateway.
"""
