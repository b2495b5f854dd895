"""What goes to a backend besides its own headers."""

from __future__ import annotations

from multidict import CIMultiDict

from proxy.credentials import Credentials
from proxy.served import Backend

OPTIONS = {"name": "a", "replicas": ["http://a/v1"], "headers": {"X-Team": "r"}, "forward_headers": ["x-session"]}


def test_handshake_gives_what_may_go_on_and_the_operator_wins() -> None:
    """The client's own key is handed on where the operator has none."""
    headers = {"Authorization": "Bearer own", "X-Session": "s", "Cookie": "c", "x-team": "other"}
    own = Credentials(Backend.model_validate(OPTIONS))
    assert own.of_handshake(headers) == {"authorization": "Bearer own", "x-session": "s", "x-team": "r"}
    keyed = Credentials(Backend.model_validate({**OPTIONS, "api_key": "k"}))
    assert keyed.of_handshake(headers)["authorization"] == "Bearer k"


def test_plain_request_keeps_its_headers_but_for_those() -> None:
    """In whatever capitals they came."""
    headers = CIMultiDict({"AUTHORIZATION": "Bearer own", "Cookie": "c"})
    Credentials(Backend.model_validate({**OPTIONS, "api_key": "k"})).put_into(headers)
    assert headers["authorization"] == "Bearer k"
    assert (headers["cookie"], headers["x-team"]) == ("c", "r")
