"""Who was affected? Forensics on request logs: which responses may hold another request's text.

Needs the extra ``scope`` (ibis on DuckDB). Read ``relation.py`` first: what the engine gives and a report takes.
"""
