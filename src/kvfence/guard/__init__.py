"""The fence inside other engines: plug-ins that carry it into what people run, without patching it.

Engine-free parts stand here (``messages.py``, ``handoff.py``, ``key.py``), one package an engine beside them. Names no
engine at import: an engine loads its guard, never the other way round. Read ``handoff.py`` first: what is promised,
what is compared.
"""
