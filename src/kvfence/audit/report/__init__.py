"""The audit as a document, one module a format; every text in it may be hostile. See ``text.py``."""
