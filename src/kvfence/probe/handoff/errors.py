"""Why a case was not tried. Not for: what a worker answered, which is a value (``trial.py``)."""


class NotTried(Exception):
    """A case could not be set up; the text says why, and holds no prompt."""
