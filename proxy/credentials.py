"""The headers that a backend gets besides its own: those that a client may choose, and those that the operator chose."""

from __future__ import annotations

from collections.abc import Mapping

from multidict import CIMultiDict

from proxy.served import Backend


class Credentials:
    """What goes to one backend.

    Args:
        backend: The operator's choices.
    """

    def __init__(self, backend: Backend) -> None:
        self._fixed = {name.lower(): value for name, value in backend.headers.items()}
        if backend.api_key is not None:
            self._fixed["authorization"] = f"Bearer {backend.api_key.get_secret_value()}"
        self._forwarded = frozenset({"authorization", *(name.lower() for name in backend.forward_headers)})

    @property
    def fixed(self) -> Mapping[str, str]:
        """Those that the operator chose, by names in lower case."""
        return self._fixed

    def of_handshake(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Those of a WebSocket handshake that go to the backend with each turn."""
        chosen = {name.lower(): value for name, value in headers.items() if name.lower() in self._forwarded}
        return {**chosen, **self._fixed}

    def put_into(self, headers: CIMultiDict[str]) -> None:
        """Those of a plain request: all of the client's, but for what the operator chose."""
        headers.update(self._fixed)
