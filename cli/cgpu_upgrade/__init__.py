"""Switches the node side to another release under running containers: ``cgpu upgrade``.

Everything is imported at the start of a command, because the files may change during it.
"""
