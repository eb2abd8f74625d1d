"""Adds cgpu to container engines, and removes it: ``cgpu install``, ``cgpu uninstall``.

Pure in the middle: ``entry`` and the tables in ``engines`` turn a configuration's text into another
text. ``plan`` reads files and says what would change; ``journal`` changes them, and changes back.
"""
