"""What users are given, made once: wheels, releases, packages, documented answers."""
