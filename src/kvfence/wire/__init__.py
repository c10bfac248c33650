"""Everything that crosses a process border: control messages and one-sided page writes.

Read ``transport.py`` first: it says what a transport must prove. Not for: deciding anything (``protocol/``).
"""
