"""What a container's root file system has: files, libraries, its loader's order."""
