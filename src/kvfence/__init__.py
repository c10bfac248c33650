"""kvfence keeps one tenant's KV cache out of another tenant's answer.

Read next: ``protocol/transitions.py`` (the legal moves), ``protocol/step.py`` (the only place where
protocol state changes), then ``runtime/`` (the processes that drive it).
"""

__version__ = "0.1.0"
