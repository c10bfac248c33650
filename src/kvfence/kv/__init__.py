"""Pages as bytes: the pool's buffer, stamps, and the comparisons that every pass makes.

Numpy and xxhash; torch only in ``host.py``. Read ``storage.py``, then ``seal.py``, then ``compare.py``.
"""
