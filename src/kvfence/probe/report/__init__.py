"""A judgement in its forms: one JSON document, and a page, JUnit and lines for a screen drawn from it.

Read first: ``document.py``.
"""
