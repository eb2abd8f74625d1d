"""The root file system of a container: its files, its libraries, and what its loader searches."""
