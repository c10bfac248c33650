"""Plain data shared by every floor: ids, tags, layouts, manifests, settings, errors.

Standard library and msgspec only; no I/O, no clock, no tensors.
"""
