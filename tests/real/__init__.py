"""Slipstream in front of a real llama-server, with the official SDKs as clients."""
