"""White-box cases against one's own prefill/decode pair: what does decode do with a hand-off that is not what it says?

The probe stands where the proxy stands, speaks to both workers, and hands over only what it has itself prefilled, for
two tenants of its own. Read next: ``trial.py`` (what is judged), ``vllm.py`` and ``sglang.py`` (the cases), ``run.py``.
"""
