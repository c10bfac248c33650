"""The incident, replayed: a small prefill pool, an engine that drains refused requests, and what the guards change.

Read ``workload.py`` (who asks for what), ``runs.py`` (the runs), ``oracle.py`` (whose bytes were read) and
``findings.py`` (what must be seen). ``docs/incident.md`` tells the story.
"""
