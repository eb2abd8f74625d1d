"""The parts of the demonstration."""
