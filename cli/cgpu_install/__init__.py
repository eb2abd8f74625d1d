"""Adds cgpu to container engines, and removes it: ``cgpu install``, ``cgpu uninstall``.

``entry`` and the tables in ``engines`` are pure: they turn a configuration's text into another
text. ``plan`` reads files and finds out what would change. ``journal`` changes them, and undoes the
changes.
"""
