"""Machines that tests make: installed, booted, served, or with users and hostile files."""
