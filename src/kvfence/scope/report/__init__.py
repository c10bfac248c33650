"""The report: ``make`` puts a document together, ``document`` is its shape, the others write it.

Every text in a document comes from a log and may be hostile; ``kvfence.evidence.visible`` makes it harmless where it is
shown. No clock, no random number and no order of threads gets into a document: the same logs give the same bytes.
"""
