"""Facts that the design takes for granted of the driver."""
