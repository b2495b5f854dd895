"""The same parts as for the demo's tests, running."""

from tests.demo.conftest import proxy_url, simulation

__all__ = ["proxy_url", "simulation"]
