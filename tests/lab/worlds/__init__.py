"""Machines that integration tests start from: users, servers, containers on them."""
