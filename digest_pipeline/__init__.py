"""One digest per customer and period, and the proof of it.

The way of the data:

1. ``eligibility.freeze`` selects the customers of a period once, and seals them as its manifest.
2. ``eligibility.compose`` renders each customer's message once, and seals the bytes.
3. ``delivery.loop`` claims, sends and settles; a claim is committed before its request starts.
4. ``reconciliation.settle`` turns unknown into sent or retry, by evidence and never by time alone.
5. ``reconciliation.report`` accounts for every customer, and compares ledger and provider.
6. ``cleanup.clean`` removes generated rows after a definitive send, once per key.
7. ``ledger`` is the truth all of them share: states in ``states``, one function per transition.
8. ``defs`` shows all this to Dagster, ``cli`` to a terminal; the rest knows neither.
"""
