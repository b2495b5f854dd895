"""The backend's side of a turn: what goes out, what is reused, what is an answer and what is not."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from proxy.upstream import header_lines
from proxy.wire import Wire
from tests.fakes import (
    END,
    STREAM_HEAD,
    Gate,
    Product,
    ScriptedUpstream,
    Step,
    answer,
    apart,
    ask,
    chunk,
    close,
    completed,
    created,
    delta,
    drip,
    eventually,
    flood,
    half_close,
    head,
    json_answer,
    read,
    reset,
    send,
    serving,
    soon,
    stall,
    stream,
    text_of,
    types,
)

GOOD = ["created", "output_text.delta", "completed"]


@contextlib.asynccontextmanager
async def serving_script(*script: Step, **options: Any) -> AsyncIterator[tuple[Product, ScriptedUpstream]]:
    """The product in front of a backend that plays a script."""
    async with ScriptedUpstream(script) as upstream, serving(upstream, **options) as product:
        yield product, upstream


async def fail(product: Product) -> dict[str, Any]:
    """A turn that ends in an error frame, alone or behind others; the connection goes on, as a second turn shows."""
    async with product.connect() as client:
        frames = await ask(client)
        assert frames[-1]["type"] == "error"
        assert types(await ask(client)) == GOOD
    error: dict[str, Any] = frames[-1]
    return error


def idle(product: Product) -> list[Wire]:
    """The connections that the product keeps."""
    return list(product.running.door._backends.first._pool._idle)


# Requests


async def test_upstream_sends_a_turn_in_one_segment() -> None:
    """Head and body of a turn leave in one write, so the backend gets them in one read."""
    async with serving_script(read, send(answer("Hello"))) as (product, upstream), product.connect() as client:
        await ask(client)
        request = upstream.requests[0]
        assert upstream.peers[0].segments == [request.raw]
        assert (request.method, request.target) == ("POST", "/v1/responses")
        assert request.json["stream"] is True
        assert dict(request.headers) == {
            "Host": f"127.0.0.1:{upstream.port}",
            "User-Agent": request.headers["User-Agent"],
            "Accept": "text/event-stream",
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
            "Content-Length": str(len(request.body)),
        }


async def test_upstream_sends_a_large_turn_whole() -> None:
    """A request larger than any buffer arrives as it is."""
    text = "x" * 8_000_000
    async with serving_script(read, send(answer("Hello"))) as (product, upstream), product.connect() as client:
        assert types(await ask(client, text)) == GOOD
        assert upstream.requests[0].json["input"][0]["content"] == text


async def test_upstream_keeps_no_cookies() -> None:
    """A cookie of one answer is in no later request, of this client or of another."""
    script = [read, send(head("Set-Cookie: a=1; Path=/", "Transfer-Encoding: chunked") + chunk(stream("x")) + END)]
    async with serving_script(*script, read, send(answer("y"))) as (product, upstream):
        for _ in range(2):
            async with product.connect() as client:
                await ask(client)
        assert len(upstream.requests) == 2
        assert not [request for request in upstream.requests if "Cookie" in request.headers]


async def test_upstream_uses_no_proxy_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `http_proxy` names gets neither turns nor plain requests."""
    async with ScriptedUpstream() as other:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{other.port}")
        async with serving_script() as (product, _), product.connect() as client:
            assert types(await ask(client)) == GOOD
        assert not other.peers


# Credentials


async def test_upstream_hands_the_clients_authorization_on() -> None:
    """Without a key of its own the proxy sends the client's, and the headers that it is told to forward; no others."""
    async with (
        serving_script(upstream__forward_headers=["x-team"]) as (product, upstream),
        product.connect(additional_headers={"Authorization": "Bearer k", "X-Team": "a", "X-Other": "b"}) as client,
    ):
        await ask(client)
        headers = upstream.requests[0].headers
        assert headers["Authorization"] == "Bearer k"
        assert headers["X-Team"] == "a"
        assert not {"X-Other", "Upgrade", "Connection", "Sec-WebSocket-Key", "Origin"} & set(headers)


async def test_upstream_sends_its_own_key() -> None:
    """`api_key` takes the place of the client's credential, and fixed headers that of forwarded ones."""
    options = {"upstream__api_key": "secret", "upstream__headers": {"X-Request-Id": "fixed"}}
    async with (
        serving_script(**options) as (product, upstream),
        product.connect(additional_headers={"Authorization": "Bearer k", "X-Request-Id": "mine"}) as client,
    ):
        await ask(client)
        headers = upstream.requests[0].headers
        assert headers.getall("Authorization") == ["Bearer secret"]
        assert headers.getall("X-Request-Id") == ["fixed"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("X-A", "a\r\nX-B: b"), ("X-A", "a\nb"), ("X-A", "a\0b"), ("X-A\r\nX-B", "b"), ("X: A", "b"), ("", "b")],
)
def test_header_lines_refuses_an_injection(name: str, value: str) -> None:
    """Neither name nor value of a header can end its line."""
    with pytest.raises(ValueError, match="header"):
        header_lines({name: value})


def test_header_lines_keeps_the_bytes_of_a_value() -> None:
    """A value that is no UTF-8 reaches the backend as the client sent it."""
    value = b"caf\xe9 na\xc3\xafve".decode("utf-8", "surrogateescape")
    assert header_lines({"x-title": value}) == b"x-title: caf\xe9 na\xc3\xafve\r\n"


# Connections


async def test_upstream_uses_a_connection_again() -> None:
    """Turns one after the other go over one connection, of whichever client they are."""
    async with ScriptedUpstream() as upstream, serving(upstream) as product:
        for _ in range(2):
            async with product.connect() as client:
                for _ in range(3):
                    assert types(await ask(client)) == GOOD
        assert len(upstream.peers) == 1
        assert await product.counts("upstream_connections") == {"new": 1, "reused": 5}


async def test_upstream_does_not_use_an_old_connection() -> None:
    """A connection that was idle for the keep-alive time is closed, not used again."""
    async with ScriptedUpstream() as upstream, serving(upstream, upstream__keepalive=4) as product:
        async with product.connect() as client:
            await ask(client)
            (wire,) = idle(product)
            wire.idle_since -= 3.5
            await ask(client)
            assert len(upstream.peers) == 1
            wire.idle_since -= 4.5
            await ask(client)
        assert len(upstream.peers) == 2
        await soon(upstream.peers[0].gone)


@pytest.mark.parametrize("options", [{"upstream__keepalive": 0}, {"upstream__profile": "llamacpp"}])
async def test_upstream_uses_no_connection_again_when_told_so(options: dict[str, Any]) -> None:
    """Without keep-alive each turn has its own connection, and the backend is told."""
    async with ScriptedUpstream() as upstream, serving(upstream, **options) as product, product.connect() as client:
        for number in range(3):
            assert types(await ask(client)) == GOOD
            assert upstream.requests[number].headers["Connection"] == "close"
            await soon(upstream.peers[number].gone)
        assert len(upstream.peers) == 3


async def test_upstream_forgets_a_connection_that_the_backend_closed() -> None:
    """The backend closes right after its answer, as llama.cpp does: nothing of it is kept, and no turn needs a retry."""
    script = [read, send(answer("Hello")), close]
    async with ScriptedUpstream(then=script) as upstream, serving(upstream) as product, product.connect() as client:
        for number in range(3):
            assert types(await ask(client)) == GOOD
            await eventually(lambda: not idle(product))
            assert len(upstream.peers) == number + 1
        assert await product.counts("upstream_retries") == {}


async def test_upstream_closes_what_it_keeps_at_the_end() -> None:
    """Nothing is left open behind a server that has ended."""
    async with ScriptedUpstream() as upstream:
        async with serving(upstream) as product, product.connect() as client:
            await ask(client)
        await soon(upstream.peers[0].gone)


# Retries


@pytest.mark.parametrize("end", [close, reset])
async def test_upstream_asks_again_once_on_a_dead_connection(end: Step) -> None:
    """A kept connection that ends without a byte of an answer was dead: the request goes out again, on a fresh one."""
    script = [read, send(answer("one")), read, end]
    async with serving_script(*script) as (product, upstream), product.connect() as client:
        await ask(client)
        assert text_of(await ask(client)) == "Hello"
        assert len(upstream.peers) == 2
        assert upstream.peers[0].requests[1].raw == upstream.peers[1].requests[0].raw
        assert await product.counts("upstream_retries") == {"stale_connection": 1}
        assert await product.counts("upstream_connections") == {"new": 2}


async def test_upstream_asks_again_no_more_than_once() -> None:
    """A fresh connection that ends too is an error."""
    script = [read, send(answer("one")), read, close]
    async with (
        ScriptedUpstream(script, [read, close]) as upstream,
        serving(upstream) as product,
        product.connect() as client,
    ):
        await ask(client)
        (error,) = await ask(client)
        assert error["error"]["code"] == "upstream_disconnected"
        assert len(upstream.peers) == 2
        assert types(await ask(client)) == GOOD


async def test_upstream_does_not_ask_again_on_a_fresh_connection() -> None:
    """There was no reason to think that it was dead before the backend got the request."""
    async with serving_script(read, close) as (product, upstream), product.connect() as client:
        (error,) = await ask(client)
        assert (error["status"], error["error"]["code"]) == (502, "upstream_disconnected")
        assert len(upstream.peers) == 1


@pytest.mark.parametrize(
    "data", [b"H", b"HTTP/1.1 100 Continue\r\n\r\n", STREAM_HEAD[:-2], STREAM_HEAD, STREAM_HEAD + chunk(created())]
)
async def test_upstream_does_not_ask_again_once_a_byte_came(data: bytes) -> None:
    """A backend that has begun to answer has taken the request."""
    script = [read, send(answer("one")), read, send(data), close]
    async with serving_script(*script) as (product, upstream), product.connect() as client:
        await ask(client)
        frames = await ask(client)
        assert frames[-1]["error"]["code"] == "upstream_disconnected"
        assert len(upstream.peers) == 1


async def test_upstream_does_not_ask_again_when_told_so() -> None:
    """`retry_stale: false` is for backends that would bill twice."""
    script = [read, send(answer("one")), read, close]
    async with serving_script(*script, upstream__retry_stale=False) as (product, upstream), product.connect() as client:
        await ask(client)
        (error,) = await ask(client)
        assert error["error"]["code"] == "upstream_disconnected"
        assert len(upstream.peers) == 1


async def test_upstream_does_not_need_a_retry_when_the_backend_closed_in_time() -> None:
    """With retries off, a connection that the backend closed while it was idle is not used."""
    gate = Gate()
    script: list[Step] = [read, send(answer("one")), gate, close]
    async with serving_script(*script, upstream__retry_stale=False) as (product, _), product.connect() as client:
        await ask(client)
        gate.open()
        await eventually(lambda: not idle(product))
        assert types(await ask(client)) == GOOD


# No answer


async def test_upstream_says_when_nobody_listens() -> None:
    """A refused connection is a 502 at once."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    async with serving(f"http://127.0.0.1:{port}/v1") as product, product.connect() as client:
        (error,) = await ask(client)
        assert (error["status"], error["error"]["code"]) == (502, "upstream_unreachable")


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 70, "a..b"])
async def test_upstream_says_when_there_is_no_such_host(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that does not resolve, or cannot be a name at all, is a 502."""

    async def refuse(*_: Any, **__: Any) -> Any:
        host.encode("idna")
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", refuse)
    async with ScriptedUpstream() as upstream, serving(upstream) as product:
        product.running.door._backends.first._pool._host = host
        async with product.connect() as client:
            (error,) = await ask(client)
        assert (error["status"], error["error"]["code"]) == (502, "upstream_unreachable")


async def test_upstream_says_when_nobody_accepts() -> None:
    """A connection that is not established within the limit is a 504."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, contextlib.ExitStack() as stack:
        address = listener.getsockname()
        for _ in range(4):  # until its queue is full
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                sock.connect(address)
        async with (
            serving(f"http://127.0.0.1:{address[1]}/v1", upstream__timeouts__connect=0.2) as product,
            product.connect() as client,
        ):
            (error,) = await ask(client)
            assert (error["status"], error["error"]["code"]) == (504, "upstream_timeout")
            assert "could not be connected to within 0.2 s" in error["error"]["message"]


@pytest.mark.parametrize(
    ("limit", "said", "message"),
    [
        ("first_event", b"", "sent no event"),
        ("first_event", STREAM_HEAD, "sent no event"),
        ("first_event", head("Content-Type: application/json", "Content-Length: 9"), "sent no event"),
        ("idle", STREAM_HEAD + chunk(created()), "fell silent"),
        ("turn", STREAM_HEAD + chunk(created()), "did not finish the response"),
        ("turn", b"", "did not finish the response"),
    ],
    ids=["no head", "no event", "no body", "silence", "no end", "nothing"],
)
async def test_upstream_is_cut_when_it_takes_too_long(limit: str, said: bytes, message: str) -> None:
    """Each limit ends the turn with a 504 that says which it was, and the backend's work is stopped."""
    options = {f"upstream__timeouts__{limit}": 0.2}
    async with serving_script(read, send(said), stall, **options) as (product, upstream):
        error = await fail(product)
        assert (error["status"], error["error"]["code"]) == (504, "upstream_timeout")
        assert message in error["error"]["message"]
        await soon(upstream.peers[0].gone)


async def test_upstream_may_take_long_in_small_steps() -> None:
    """The limits are for silence: a turn that takes several times as long is served when something comes in between."""
    gates = [Gate() for _ in range(12)]
    steps: list[Step] = [read, send(STREAM_HEAD + chunk(created()))]
    for gate in gates:
        steps += [gate, send(chunk(b": still there\n\n"))]
    options = {"upstream__timeouts__first_event": 1, "upstream__timeouts__idle": 1}
    async with serving_script(*steps, send(chunk(completed()) + END), **options) as (product, _):
        async with product.connect() as client, asyncio.TaskGroup() as tasks:
            asked = tasks.create_task(ask(client))
            for gate in gates:
                await soon(gate.reached)
                await asyncio.sleep(0.1)
                gate.open()
        assert types(asked.result()) == ["created", "completed"]


# Streams that break off

BEGUN = STREAM_HEAD + chunk(created() + delta("He"))


@pytest.mark.parametrize(
    "steps",
    [
        [send(BEGUN + END)],
        [send(BEGUN), close],
        [send(BEGUN + b"99\r\ndata: {"), close],
        [send(BEGUN + b"99\r\ndata: {"), half_close, stall],
        [send(BEGUN + chunk(completed()[:50]) + END)],
        [send(head("Content-Type: text/event-stream") + created() + delta("He")), close],
        [send(head("Content-Length: 5000") + created() + delta("He")), close],
    ],
    ids=["clean end", "between chunks", "in a chunk", "half-close", "in an event", "until end", "length"],
)
async def test_upstream_stream_that_breaks_off_is_an_error(steps: list[Step]) -> None:
    """However a stream ends without its last event: what came is relayed, then a 502, and the next turn works."""
    async with serving_script(read, *steps) as (product, _), product.connect() as client:
        frames = await ask(client)
        assert types(frames) == ["created", "output_text.delta", "error"]
        assert (frames[-1]["status"], frames[-1]["error"]["code"]) == (502, "upstream_disconnected")
        assert types(await ask(client)) == GOOD


async def test_upstream_stream_that_is_reset_is_an_error() -> None:
    """A reset in the middle of an event is a 502, and the next turn works."""
    gate = Gate()
    script: list[Step] = [read, send(BEGUN + b"99\r\ndata: {"), gate, reset]
    async with serving_script(*script) as (product, _), product.connect() as client, asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(ask(client))
        await soon(gate.reached)
        gate.open()
        frames = await asked
        assert frames[-1]["error"]["code"] == "upstream_disconnected"
        assert types(await ask(client)) == GOOD


async def test_upstream_stream_may_end_its_connection_behind_its_last_event() -> None:
    """After the last event nothing is missing, whatever becomes of the rest."""
    for rest in (b"", b"99\r\nda", b"garbage"):
        script = [read, send(STREAM_HEAD + chunk(stream("Hello")) + rest), close]
        async with serving_script(*script) as (product, _), product.connect() as client:
            assert types(await ask(client)) == GOOD
            assert types(await ask(client)) == GOOD


async def test_upstream_answer_before_garbage_counts() -> None:
    """The response is complete in the very segment in which the answer turns into something else."""
    script = [read, send(STREAM_HEAD + chunk(stream("Hello")) + END + b"garbage")]
    async with serving_script(*script) as (product, upstream), product.connect() as client:
        assert types(await ask(client)) == GOOD
        await soon(upstream.peers[0].gone)


async def test_upstream_connection_does_not_wait_for_a_tail_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend that keeps its answer open behind the last event loses the connection; the client waits for nothing."""
    monkeypatch.setattr("proxy.exchange._TAIL_TIMEOUT", 0.1)
    script = [read, send(STREAM_HEAD + chunk(stream("Hello"))), stall]
    async with (
        serving_script(*script, websocket__ping_interval=0.2) as (product, upstream),
        product.connect() as client,
    ):
        assert types(await ask(client)) == GOOD
        assert types(await ask(client)) == GOOD
        assert len(upstream.peers) == 2
        await soon(upstream.peers[0].gone)


@pytest.mark.parametrize("how", ["whole", "head apart", "byte by byte"])
async def test_upstream_stream_gives_the_same_frames_however_it_is_cut(how: str) -> None:
    """Borders of segments and chunks can stand anywhere."""
    body = b": comment\n\n" + created() + delta("Grüße, ") + delta("\u2028world", 2) + completed(number=3)
    chunks = b"".join(chunk(body[start : start + 7]) for start in range(0, len(body), 7)) + END
    step = {
        "whole": send(STREAM_HEAD + chunks),
        "head apart": apart(STREAM_HEAD, chunks),
        "byte by byte": drip(STREAM_HEAD + chunks),
    }[how]
    async with serving_script(read, step) as (product, _), product.connect() as client:
        frames = await ask(client)
        assert types(frames) == ["created", "output_text.delta", "output_text.delta", "completed"]
        assert text_of(frames) == "Grüße, \u2028world"
        assert frames[-1]["sequence_number"] == 3


# Answers that are no streams


@pytest.mark.parametrize("status", [201, 202, 204, 206, 301, 302, 304, 307, 308, 600, 999])
async def test_upstream_answer_with_another_status_is_an_error(status: int) -> None:
    """Neither success of another kind nor a redirect is a stream; nothing is followed, and the frame's status is one of an error."""
    async with ScriptedUpstream() as other:
        headers = (f"Location: http://127.0.0.1:{other.port}/v1/responses", "Content-Length: 0")
        async with serving_script(read, send(head(*headers, status=f"{status} Other"))) as (product, upstream):
            error = await fail(product)
            assert (error["status"], error["error"]["code"]) == (502, "upstream_protocol_error")
            assert str(status) in error["error"]["message"]
            assert len(upstream.requests) == 2
        assert not other.peers


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            head("Content-Type: text/event-stream", "Content-Encoding: gzip", "Content-Length: 2") + b"\x1f\x8b",
            "compressed",
        ),
        (json_answer({"id": "resp_1", "object": "response", "error": None}), "got application/json"),
        (head("Content-Type: text/html; charset=utf-8", "Content-Length: 6") + b"<html>", "got text/html"),
        (b"<html>", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000, "its head has more than"),
    ],
    ids=["compressed", "json", "html", "no http", "large head"],
)
async def test_upstream_answer_that_is_no_stream_is_an_error(data: bytes, message: str) -> None:
    """A 200 that is something else is a 502 that says what it was, and the next turn works."""
    async with serving_script(read, send(data)) as (product, _):
        error = await fail(product)
        assert (error["status"], error["error"]["code"]) == (502, "upstream_protocol_error")
        assert message in error["error"]["message"]


async def test_upstream_answer_without_a_content_type_is_taken_for_a_stream() -> None:
    """Some servers leave it out."""
    script = [read, send(head("Transfer-Encoding: chunked", "Content-Encoding: ") + chunk(stream("Hello")) + END)]
    async with serving_script(*script) as (product, _), product.connect() as client:
        assert types(await ask(client)) == GOOD


async def test_upstream_error_in_a_200_is_handed_on() -> None:
    """Some servers put their errors into a 200 answer."""
    script = [read, send(json_answer({"error": {"message": "out of memory", "type": "server_error"}}))]
    async with serving_script(*script) as (product, _):
        error = await fail(product)
        assert error["status"] == 502
        assert error["error"]["message"] == "out of memory"


async def test_upstream_refusal_is_handed_on() -> None:
    """The backend's own error, with its status and what it says about when to try again; the connection is kept."""
    body = {"error": {"message": "slow down", "type": "tokens", "code": "rate_limit_exceeded", "param": None}}
    script = [
        read,
        send(json_answer(body, "Retry-After: 7", "Set-Cookie: a=b", status="429 Too Many")),
        read,
        send(answer("x")),
    ]
    async with serving_script(*script) as (product, upstream), product.connect() as client:
        (error,) = await ask(client)
        assert (error["status"], error["error"]["code"]) == (429, "rate_limit_exceeded")
        assert error["headers"] == {"retry-after": "7"}
        assert text_of(await ask(client)) == "x"
        assert len(upstream.peers) == 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (head("Content-Length: 4", status="500 No") + b"oops", "oops"),
        (head("Content-Encoding: gzip", "Content-Length: 3", status="500 No") + b"\x1f\x8b\x08", "status 500"),
        (head("Content-Length: 0", status="500 No"), "status 500"),
        (head("Content-Length: 99", status="500 No") + b'{"error": "half', '{"error": "half'),
    ],
    ids=["text", "compressed", "empty", "cut"],
)
async def test_upstream_refusal_may_have_any_body(data: bytes, message: str) -> None:
    """Text, nothing, or what cannot be read: the status is handed on."""
    async with serving_script(read, send(data), close) as (product, _):
        error = await fail(product)
        assert error["status"] == 500
        assert message in error["error"]["message"]


async def test_upstream_refusal_may_not_be_endless() -> None:
    """No more than 1 MiB is read of an error, and the connection is closed."""
    script = [read, send(head("Transfer-Encoding: chunked", status="500 No")), flood(chunk(b"x" * 2**16), 10_000)]
    async with serving_script(*script) as (product, upstream):
        error = await fail(product)
        assert error["status"] == 500
        await soon(upstream.peers[0].gone)


async def test_upstream_refusal_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error whose body never ends is handed on with what came of it."""
    monkeypatch.setattr("proxy.upstream._ERROR_BODY_TIMEOUT", 0.1)
    script = [read, send(head("Content-Length: 99", status="503 Busy") + b"busy"), stall]
    async with serving_script(*script) as (product, upstream):
        error = await fail(product)
        assert (error["status"], error["error"]["message"]) == (503, "busy")
        await soon(upstream.peers[0].gone)


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that nobody trusts, its key in the same file."""
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=127.0.0.1"
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    try:
        subprocess.run(
            [*command.split(), *names, "-keyout", path, "-out", f"{path}.crt"], check=True, capture_output=True
        )
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    path.write_bytes(path.read_bytes() + Path(f"{path}.crt").read_bytes())
    return path


@contextlib.asynccontextmanager
async def serving_tls(certificate: Path) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A backend behind TLS: its URL, and the requests that it got."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                requests.append(await reader.readuntil(b'"hi"}]}'))
                writer.write(answer("Hello"))
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", requests


async def test_upstream_does_not_trust_a_certificate_of_nobody(certificate: Path) -> None:
    """A certificate that no authority has signed is a 502, and the backend gets no request."""
    async with serving_tls(certificate) as (url, requests), serving(url) as product, product.connect() as client:
        (error,) = await ask(client)
        assert (error["status"], error["error"]["code"]) == (502, "upstream_unreachable")
        assert not requests


async def test_upstream_speaks_tls(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an authority that the operator trusts, turns go over TLS and use their connection again."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with serving_tls(certificate) as (url, requests), serving(url) as product, product.connect() as client:
        for _ in range(2):
            assert types(await ask(client)) == GOOD
        assert len(requests) == 2
        assert await product.counts("upstream_connections") == {"new": 1, "reused": 1}
