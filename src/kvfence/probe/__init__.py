"""Does this endpoint leak? Canaries through the front door, with a statistical verdict.

Needs the extra ``probe``; no torch. Read ``exchange.py`` first: what is asked and what came back; everything else makes
the first or judges the second.
"""
