"""Slipstream: WebSocket mode for model servers that only speak HTTP.

Placeholder; the tour follows.
"""

__version__ = "0.1.0"
