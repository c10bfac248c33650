"""The closed world: the production nodes on a symbolic network and memory, driven by one seed.

Read ``world.py`` first. Standard library and msgspec only.
"""
