"""Can this deployment leak? Rules over typed facts; nothing here opens a file, a socket or an engine.

Read in this order: ``deployment.py`` (facts become engines), ``rule.py`` (what a rule is), any file of ``rules/``,
``runner.py`` (rules over a deployment), ``report/``.
"""
