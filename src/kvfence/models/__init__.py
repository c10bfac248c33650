"""Real models: load a checkpoint, tokenise, and run forward passes whose K and V live in fenced pages.

``executor`` is the seam the runtime sees; ``transformer`` is its implementation over transformers' two public hooks.
``checkpoint``, ``tokenizer``, ``families``, ``bundled`` and ``toy`` import no torch, so the gateway may use them.

Not for: who owns a page (``protocol``), views of the pool (``kv/host.py``), when a pass runs (``runtime``).
"""
