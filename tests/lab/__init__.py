"""Helper modules of the tests, a room for each thing they make or watch."""
