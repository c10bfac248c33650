"""The closed world: the production nodes on a simulated network, time and memory, driven by one seed.

Read ``world.py`` first. Standard library and msgspec only, but for ``records.py``, in which pages are bytes.
"""
