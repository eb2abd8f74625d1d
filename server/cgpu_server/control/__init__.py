"""The control socket, and the requests that clients can send to it."""
