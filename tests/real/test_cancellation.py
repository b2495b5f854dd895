"""A client that leaves takes its work along."""

from __future__ import annotations

import json
import socket
from typing import Any, Final

import pytest
from websockets.sync.client import connect
from websockets.sync.connection import Connection

from tests.rig.llama import MODEL, Llama
from tests.rig.processes import wait_until
from tests.rig.slipstream import Slipstream

pytestmark = pytest.mark.timeout(300)

#: So many that the model would write for a long time; it may not stop before.
_MANY: Final = 15_000


@pytest.mark.parametrize("leaving", ["without a word", "with a close frame"])
def test_client_that_leaves_frees_the_backends_slot(any_proxy: Slipstream, llama: Llama, leaving: str) -> None:
    """In the middle of a stream the connection goes away; the backend stops, long before it would be done."""
    before = len(any_proxy.lines("turn"))
    with _connect(any_proxy) as client:
        _begin_story(client, _MANY)
        (task,) = [slot["id_task"] for slot in llama.slots() if slot["is_processing"]]
        if leaving == "without a word":
            client.socket.shutdown(socket.SHUT_RDWR)
        else:
            client.close()
        assert wait_until(lambda: not llama.is_busy())
    (stopped,) = [slot for slot in llama.slots() if slot.get("id_task") == task]
    assert stopped["next_token"][0]["n_remain"] > _MANY / 2
    line = any_proxy.turns(before + 1)[before]
    assert line["outcome"] == "client_gone"
    assert line["events"] < _MANY / 2


def test_client_that_leaves_disturbs_no_other(any_proxy: Slipstream, llama: Llama) -> None:
    """Beside it another connection's turn goes on to its end."""
    with _connect(any_proxy) as staying, _connect(any_proxy) as leaving:
        _begin_story(leaving, _MANY)
        _begin_story(staying, 600)
        leaving.socket.shutdown(socket.SHUT_RDWR)
        event: dict[str, Any] = {}
        while event.get("type") != "response.completed":
            event = json.loads(staying.recv(timeout=60))
            assert event["type"] != "error"
        assert event["response"]["usage"]["output_tokens"] == 600
    assert wait_until(lambda: not llama.is_busy())


def _connect(proxy: Slipstream) -> Connection:
    # Without a bound the client reads on, so that its close frame is answered among what else is on its way.
    return connect(f"{proxy.base_url.replace('http', 'ws')}/responses", max_queue=None)


def _begin_story(client: Connection, tokens: int) -> None:
    """Ask for an answer of so many tokens, and read the first of them."""
    fields = {"model": MODEL, "input": "Tell me a story.", "ignore_eos": True, "max_output_tokens": tokens}
    client.send(json.dumps({"type": "response.create", **fields}))
    while json.loads(client.recv(timeout=60))["type"] != "response.output_text.delta":
        pass
