"""As much of vLLM as its connectors see: a stand-in for tests, written for the guard's points and nothing else."""

__version__ = "0.32.0"
