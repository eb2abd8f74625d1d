"""The root file system of a container: files, libraries, the order of its loader."""
