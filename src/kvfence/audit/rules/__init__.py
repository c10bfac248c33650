"""One file a rule. An id is never used again, also when its rule is gone; names say the bad pattern.

A file holds a docstring with its five headings, a check that sees facts only, and ``RULE``.
"""
