"""Pairs of other engines behind the gateway: SGLang and vLLM, spoken to over HTTP as they are.

Read ``handoff.py`` first: when a token may leave, and when a leg may be ended. Not for: the engines' insides
(``guard/``) or HTTP towards clients (``gateway/``), which sees ``runtime.generation.Generations`` alone.
"""
