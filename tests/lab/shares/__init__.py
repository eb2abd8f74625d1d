"""Programs that compute beside each other, and gates that a test watches or plays."""
