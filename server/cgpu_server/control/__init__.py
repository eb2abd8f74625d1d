"""The control socket, and the requests that can be sent to it."""
