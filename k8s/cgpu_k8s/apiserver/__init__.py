"""The client of the API server: configuration, requests and watches."""
