"""Another release of the node side under running containers: ``cgpu upgrade``.

Everything is imported at the start of a command: from the middle on, the files may be others.
"""
