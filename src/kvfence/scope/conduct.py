"""What is tested of an account and what comes out, as plain structs: a report can be read without the tests' library.

The tests stand in ``statistics.py``.
"""

from msgspec import Struct

RATE = 0.01
"""Of the accounts named, the share that may be named wrongly."""


class Asked(Struct, frozen=True):
    """One account's long prompts while the model was exposed, in the order of time.

    Shapes:
        times_ms, lengths, over: [prompts]; over: above the limit that held then.
    """

    account: str
    times_ms: tuple[int, ...]
    lengths: tuple[int, ...]
    over: tuple[bool, ...]

    @property
    def num_over(self) -> int:
        """Count the prompts above the limit."""
        return sum(self.over)


class Test(Struct, frozen=True):
    """One test. p: None where there was too little to compare with; adjusted: for all tests together."""

    name: str
    p: float | None
    adjusted: float | None
    observed: str

    @property
    def found(self) -> bool:
        """Tell whether the test finds conduct unlike the others'."""
        return self.adjusted is not None and self.adjusted <= RATE


class Conduct(Struct, frozen=True):
    """One tested account."""

    account: str
    over: int
    tests: tuple[Test, ...]

    @property
    def named(self) -> tuple[str, ...]:
        """Give the names of the tests that found something."""
        return tuple(test.name for test in self.tests if test.found)
