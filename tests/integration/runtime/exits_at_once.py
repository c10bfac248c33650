"""A worker program that dies at start, with a status of its own."""

import sys

if __name__ == "__main__":
    sys.exit(3)
