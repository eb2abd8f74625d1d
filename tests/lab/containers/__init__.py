"""Container engines, low-level runtimes and images, private to the tests."""
