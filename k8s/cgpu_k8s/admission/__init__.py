"""Admission of pods, pod templates, bindings and changes to nodes, by one table of rules."""
