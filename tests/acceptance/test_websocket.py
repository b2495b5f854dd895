"""WebSocket mode: what Open Responses asks of it, every response with `store: false`.

The behaviours are those that the specification's own acceptance tests name. A code word that the backend says, or does not
say, shows which history reached it.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.acceptance.stand import Stand, text_of

pytestmark = pytest.mark.timeout(300)  # llama-server may have to be fetched first

_QUESTION: Final = "What is the code word?"


async def test_response(stand: Stand) -> None:
    """A create is answered with the events of a response."""
    message = {"type": "message", "role": "user", "content": "The code word is cobalt. Repeat it."}
    async with stand.connect() as client:
        turn = await client.respond(input=[message])
    assert turn.types[-1] == "response.completed"
    assert text_of(turn.response) == stand.answer("cobalt")
    assert turn.response["previous_response_id"] is None


async def test_sequential_responses(stand: Stand) -> None:
    """One connection serves one create after another; without a previous response they know nothing of each other."""
    async with stand.connect() as client:
        first = await client.respond(input="The code word is cobalt. Repeat it.")
        second = await client.respond(input=_QUESTION)
    assert first.response["id"] != second.response["id"]
    assert text_of(first.response) == stand.answer("cobalt")
    assert text_of(second.response) == stand.answer()


async def test_continuation(stand: Stand) -> None:
    """With the previous response's id the client sends only what is new, and the backend reads everything."""
    async with stand.connect() as client:
        first = await client.respond(input="The code word is cobalt. Remember it.")
        second = await client.respond(input=_QUESTION, previous_response_id=first.response["id"])
        alone = await client.respond(input=_QUESTION)
    assert text_of(second.response) == stand.answer("cobalt")
    assert text_of(alone.response) == stand.answer()
    read = first.usage["input_tokens"] + alone.usage["input_tokens"]
    assert second.usage["input_tokens"] >= read
    if stand.reader:
        assert [len(_items(body)) for body in stand.reader.bodies] == [1, 3, 1]


async def test_recovery_after_reconnect(stand: Stand) -> None:
    """A new connection does not know the response of another; a create with everything in it does without."""
    async with stand.connect() as client:
        lost = await client.respond(input="The code word is copper. Remember it.")
    async with stand.connect() as client:
        error = await client.fail(input=_QUESTION, previous_response_id=lost.response["id"])
        told = {"type": "message", "role": "user", "content": "The code word is copper. Repeat it."}
        recovered = await client.respond(input=[told])
        continued = await client.respond(input=_QUESTION, previous_response_id=recovered.response["id"])
    _check_not_found(error, lost.response["id"])
    assert text_of(recovered.response) == text_of(continued.response) == stand.answer("copper")


async def test_previous_response_not_found(stand: Stand) -> None:
    """An id that nobody knows is refused, and costs the backend nothing; the connection goes on."""
    async with stand.connect() as client:
        error = await client.fail(input=_QUESTION, previous_response_id="resp_that_never_was")
        after = await client.respond(input=_QUESTION)
    _check_not_found(error, "resp_that_never_was")
    assert text_of(after.response) == stand.answer()
    if stand.reader:
        assert len(stand.reader.bodies) == 1


async def test_failed_continuation_evicts_the_response(stand: Stand) -> None:
    """A tool's output without its call is refused, and the response that it was to continue is gone."""
    orphan = {"type": "function_call_output", "call_id": "call_that_never_was", "output": "It rains."}
    async with stand.connect() as client:
        first = await client.respond(input="The code word is ember. Remember it.")
        failed = await client.fail(input=[orphan], previous_response_id=first.response["id"])
        again = await client.fail(input=_QUESTION, previous_response_id=first.response["id"])
    assert (failed["status"], failed["error"]["type"]) == (400, "invalid_request_error")
    assert failed["error"]["code"] != "previous_response_not_found"
    _check_not_found(again, first.response["id"])


def _items(body: Any) -> list[Any]:
    """The input items of a request, which may be a string for a single one."""
    return body["input"] if isinstance(body["input"], list) else [body["input"]]


def _check_not_found(event: Any, response_id: str) -> None:
    error = event["error"]
    assert event["status"] == 400
    assert (error["type"], error["code"]) == ("invalid_request_error", "previous_response_not_found")
    assert error["param"] == "previous_response_id"
    assert response_id in error["message"]
