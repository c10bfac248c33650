"""One detector a file: what it sees in a record, and how often it would be wrong on a sound server."""
