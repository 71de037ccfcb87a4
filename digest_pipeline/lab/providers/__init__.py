"""Real mail providers, imitated: HTTP servers in processes of their own that keep count.

No provider can be reached from a test, so each is emulated from what it documents, ugly answers
included. ``emulation`` is what one provider declares, one file for each; ``service`` is what all
have in common: the sandbox's store, fault plan, rate limit, admin side and oracle. Nothing here
shares code with the gateways: what both got wrong in the same way would pass every test.
"""
