"""Assertions that stay on in production.

Not for: bad input from outside (that is an error of ``errors.py``); a broken invariant is our own bug.
"""


class InvariantBroken(BaseException):
    """A condition the code relies on is false: stop this process, it is a bug here."""


def require(condition: bool, message: str) -> None:
    """Raise ``InvariantBroken`` unless the condition holds."""
    if not condition:
        raise InvariantBroken(message)
