"""How cgpu talks to the API server: which one and as whom, requests, and watching."""
