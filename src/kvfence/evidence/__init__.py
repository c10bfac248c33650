"""What deployments say of themselves: sources, parsers, typed facts. Used by audit, and later by scope and probe.

Light install: standard library, msgspec and small parsers only. Read ``facts.py`` first.
"""
