"""What users get, built once: wheels, releases, packages, documented answers."""
