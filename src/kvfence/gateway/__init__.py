"""HTTP in OpenAI's shape in front of the workers: translate, admit, stream, answer everything.

Read ``app.py`` (routes), ``translate.py`` (what becomes of a body), ``responses.py`` (the one table of answers),
``streams.py`` and ``sessions.py`` (tokens on their way to a client). No torch and no transformers here.
"""
