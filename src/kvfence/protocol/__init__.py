"""The hand-off protocol: one pure ``step`` that the live server, simulation and search all run.

Read ``transitions.py`` first, then ``messages.py``, ``step.py`` and the three nodes beside it.
Standard library and msgspec only: no I/O, clock, randomness, tensors or logging.
"""
