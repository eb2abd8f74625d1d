"""Helper modules of the tests, with a folder for each thing that they make or watch."""
