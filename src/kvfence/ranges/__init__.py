"""Practice servers that leak in known ways: production nodes, workers and page writes, with guards away or one fault.

For training, and to test what looks for leaks. ``cli/serve`` cannot reach this package. Read ``catalogue.py`` first.
"""
