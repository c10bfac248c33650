"""A package of the stand-in."""
