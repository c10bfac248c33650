"""Made-up request logs with a planted incident, so that a report can be tried and measured on a known answer.

``plan`` says what is made, ``ordinary`` and ``sessions`` make the traffic, ``planted`` the incident and its traps,
``writing`` the files. Nothing in them comes from anybody's log. One seed gives one log.
"""
