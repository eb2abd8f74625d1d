"""Requests to the kubelet and its container runtime, and answers to the kubelet's."""
