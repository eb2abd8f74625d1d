"""Switches the node side to another release under running containers: ``cgpu upgrade``.

A command imports everything at its start, because the files may change while it runs.
"""
