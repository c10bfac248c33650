"""The complete record of what a node saw, did and decided: NDJSON, for machines.

Not for: people (the log) or rates (metrics). Holds no prompt, no output and no token ids: events carry counts.
"""
