"""The command line: one module a verb. Imports of a verb's own machinery happen when it runs."""
