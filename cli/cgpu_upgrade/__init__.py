"""Another release of the node side under running containers: ``cgpu upgrade``.

Everything is imported at the start of a command, because the files may change during it.
"""
