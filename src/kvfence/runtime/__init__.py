"""The live driver: processes, sockets, clocks and real bytes around the pure nodes.

Read ``generation.py`` (what the gateway sees), then ``supervisor.py`` and the two workers.
"""
