"""Plain HTTP goes through byte for byte, in both directions (:mod:`proxy.passthrough`)."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import zlib
from typing import Any

import pytest
from backports import zstd

from tests.fakes import (
    END,
    STREAM_HEAD,
    Gate,
    Product,
    RawClient,
    Request,
    ScriptedUpstream,
    Step,
    chunk,
    close,
    completed,
    created,
    eventually,
    flood,
    head,
    json_answer,
    read,
    reset,
    send,
    serving,
    soon,
    stall,
    stream,
)

NO_BODY = head("Content-Length: 0")


def request(
    method: str = "GET", target: str = "/v1/models", *headers: str, body: bytes = b"", version: str = "1.1"
) -> bytes:
    """A request as bytes; a length is added for a body."""
    lines = [f"{method} {target} HTTP/{version}", "Host: proxy:1", *headers]
    if body and not any(line.startswith(("Transfer-Encoding", "Content-Length")) for line in headers):
        lines.append(f"Content-Length: {len(body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body


async def fetch(product: Product, data: bytes, *, is_head: bool = False) -> tuple[bytes, bytes]:
    """One request on a connection of its own: head and body of the answer."""
    with await RawClient.open(product.address) as client:
        await client.send_bytes(data)
        return await read_answer(client, is_head=is_head)


async def read_answer(client: RawClient, *, is_head: bool = False) -> tuple[bytes, bytes]:
    """Head and body of an answer; the body without its chunks."""
    answered = await client.read_head()
    lowered = answered.lower()
    if is_head or answered.startswith((b"HTTP/1.1 204", b"HTTP/1.1 304")):
        return answered, b""
    if b"transfer-encoding: chunked" in lowered:
        body = b""
        while size := int(await client.read_until(b"\r\n"), 16):
            body += await client.read_exactly(size)
            await client.read_exactly(2)
        await client.read_exactly(2)
        return answered, body
    size = int(lowered.partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return answered, await client.read_exactly(size)


def headers_of(raw_head: bytes) -> list[str]:
    """The lines of a head, names in lower case, without those that are for one hop, the host, and a date."""
    lines = [line.partition(":") for line in raw_head.decode("latin-1").split("\r\n")[1:-2]]
    dropped = ("date", "transfer-encoding", "connection", "host")
    return [f"{name.lower()}: {value.strip()}" for name, _, value in lines if name.lower() not in dropped]


def lowered(*lines: str) -> list[str]:
    """Header lines with their names in lower case."""
    return [f"{name.lower()}: {value.strip()}" for name, _, value in (line.partition(":") for line in lines)]


async def passed(*script: Step, data: bytes, **options: Any) -> tuple[Request, bytes, bytes]:
    """One request through the product: as the backend got it, and head and body of the answer."""
    async with ScriptedUpstream([read, *script]) as upstream, serving(upstream, **options) as product:
        answered, body = await fetch(product, data, is_head=data.startswith(b"HEAD"))
        return upstream.requests[0], answered, body


# Requests


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"])
async def test_passthrough_keeps_method_and_answer(method: str) -> None:
    """Every method goes through."""
    got, answered, _ = await passed(send(NO_BODY), data=request(method, "/v1/models"))
    assert (got.method, got.target, got.body) == (method, "/v1/models", b"")
    assert answered.startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/v1/models", "/v1/models"),
        ("/models", "/v1/models"),
        ("/v1", "/v1"),
        ("/v1/", "/v1/"),
        ("/", "/v1/"),
        ("/v10/models", "/v1/v10/models"),
        ("/v1/v1/models", "/v1/v1/models"),
        ("/v1/responses/resp_1/input_items?after=a&limit=2", "/v1/responses/resp_1/input_items?after=a&limit=2"),
        ("/v1/a%2Fb%2fc%20d%C3%A9+e~!$&'()*,;=:@", "/v1/a%2Fb%2fc%20d%C3%A9+e~!$&'()*,;=:@"),
        ("/v1/x?", "/v1/x"),
        ("/v1/x?q=%7B%22a%22%3A+1%7D&q=&&=b;c?d/e", "/v1/x?q=%7B%22a%22%3A+1%7D&q=&&=b;c?d/e"),
        ("/v1/./a/../b//c", "/v1/./a/../b//c"),
        ("/v1/codex/responses", "/v1/responses"),
        ("/codex/responses?a=b", "/v1/responses?a=b"),
        ("/v1/codex/responses/compact", "/v1/codex/responses/compact"),
        ("http://elsewhere:99/v1/models?a=b", "/v1/models?a=b"),
        ("//elsewhere/models", "/v1//elsewhere/models"),
    ],
)
async def test_passthrough_keeps_the_target(target: str, expected: str) -> None:
    """Path and query reach the backend as they were written, below its base path; the host in them is not followed."""
    got, _, _ = await passed(send(NO_BODY), data=request("GET", target), upstream__state="upstream")
    assert got.target == expected


@pytest.mark.parametrize(
    "line", ["OPTIONS *", "CONNECT elsewhere:443", "CONNECT .elsewhere:443", "GET http://elsewhere?a"]
)
async def test_passthrough_refuses_a_target_without_a_path(line: str) -> None:
    """It could end up in the host of the URL that is asked, and the operator's key with it: 404, and nobody is asked."""
    async with ScriptedUpstream() as upstream, serving(upstream, upstream__api_key="secret") as product:
        with await RawClient.open(product.address) as client:
            await client.send_bytes(f"{line} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            answered = await client.read_head()
        assert answered.startswith(b"HTTP/1.1 404 ")
        assert not upstream.peers


async def test_passthrough_keeps_headers_except_those_for_one_hop() -> None:
    """Order, repetitions and values stay; what is for one hop stays behind, what `Connection` names too."""
    end_to_end = [
        "X-One: 1",
        "x-two:  spaced  value",
        "X-ONE: again",
        "Cookie: a=b; c=d",
        "User-Agent: me/1",
        "Accept: */*",
        "Accept-Encoding: br, gzip",
        "Authorization: Bearer k",
        "OpenAI-Beta: x",
        "Idempotency-Key: 7",
        "X-Empty:",
        "Range: bytes=0-9",
        "Forwarded: for=1.2.3.4",
    ]
    one_hop = [
        "Connection: keep-alive, X-Hop",
        "X-Hop: secret",
        "Keep-Alive: timeout=5",
        "TE: trailers",
        "Trailer: X-T",
        "Proxy-Authorization: Basic x",
        "Proxy-Connection: keep-alive",
        "Upgrade: h2c",
    ]
    got, _, _ = await passed(send(NO_BODY), data=request("GET", "/v1/models", *end_to_end, *one_hop))
    assert headers_of(got.raw.partition(b"\r\n\r\n")[0] + b"\r\n\r\n") == lowered(*end_to_end)
    assert got.headers["Host"] != "proxy:1"


async def test_passthrough_sends_its_own_credential() -> None:
    """What the operator has set takes the place of what the client sent."""
    options = {"upstream__api_key": "secret", "upstream__headers": {"X-Org": "ours"}}
    data = request("GET", "/v1/models", "authorization: Bearer k", "x-org: theirs")
    got, _, _ = await passed(send(NO_BODY), data=data, **options)
    assert got.headers.getall("Authorization") == ["Bearer secret"]
    assert got.headers.getall("X-Org") == ["ours"]


@pytest.mark.parametrize(
    ("headers", "body", "expected"),
    [
        ([], b"", b""),
        (["Content-Length: 0"], b"", b""),
        ([], b'{"a": 1}', b'{"a": 1}'),
        ([], b"\0\xff" * 50_000, b"\0\xff" * 50_000),
        (["Transfer-Encoding: chunked"], chunk(b"one ") + chunk(b"two") + END, b"one two"),
        (["Transfer-Encoding: chunked"], END, b""),
        (["Content-Encoding: x-unheard-of"], b"bytes", b"bytes"),
        (["Content-Encoding: x-gzip"], gzip.compress(b"x"), gzip.compress(b"x")),
        (["Content-Encoding: gzip, gzip"], b"bytes", b"bytes"),
        (["Content-Encoding: identity"], b"bytes", b"bytes"),
    ],
    ids=["none", "empty", "json", "binary", "chunks", "no chunks", "unknown", "x-gzip", "twice", "identity"],
)
async def test_passthrough_keeps_the_body(headers: list[str], body: bytes, expected: bytes) -> None:
    """With a length, in chunks, or not at all; in an encoding that it does not know, as it is and called what it is."""
    got, _, _ = await passed(send(NO_BODY), data=request("POST", "/v1/files", *headers, "Content-Type: a/b", body=body))
    assert got.body == expected
    assert got.headers["Content-Type"] == "a/b"
    for line in headers:
        name, _, value = line.partition(": ")
        if name != "Content-Length":
            assert got.headers[name] == value


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", gzip.compress(b"x" * 100_000)),
        ("GZip", gzip.compress(b"x" * 100_000)),
        ("deflate", zlib.compress(b"x" * 100_000)),
        ("deflate", zlib.compress(b"x" * 100_000, wbits=-15)),
        ("zstd", zstd.compress(b"x" * 100_000)),
    ],
    ids=["gzip", "GZip", "zlib", "raw", "zstd"],
)
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_passthrough_inflates_what_a_client_compressed(encoding: str, body: bytes, *, is_chunked: bool) -> None:
    """The backend gets the plain body with its right length, and no word of an encoding."""
    headers = [f"Content-Encoding: {encoding}"]
    if is_chunked:
        headers.append("Transfer-Encoding: chunked")
        body = chunk(body[:10]) + chunk(body[10:]) + END
    got, _, _ = await passed(send(NO_BODY), data=request("POST", "/v1/responses", *headers, body=body))
    assert got.body == b"x" * 100_000
    assert got.headers["Content-Length"] == "100000"
    assert "Content-Encoding" not in got.headers
    assert "Transfer-Encoding" not in got.headers


@pytest.mark.parametrize(
    ("encoding", "body", "status", "message"),
    [
        ("gzip", b"this is not gzip", 400, "encoding"),
        ("zstd", b"this is not zstd", 400, "encoding"),
        ("gzip", gzip.compress(bytes(10_000_000)), 413, "larger than 65536 bytes"),
        ("zstd", zstd.compress(bytes(10_000_000)), 413, "larger than 65536 bytes"),
    ],
    ids=["no gzip", "no zstd", "gzip bomb", "zstd bomb"],
)
async def test_passthrough_refuses_what_it_cannot_inflate(
    encoding: str, body: bytes, status: int, message: str
) -> None:
    """A body that is not what it says, or becomes too large, is an error; the backend hears nothing of it."""
    async with ScriptedUpstream() as upstream, serving(upstream, websocket__max_message=65536) as product:
        data = request("POST", "/v1/responses", f"Content-Encoding: {encoding}", body=body)
        answered, answer_body = await fetch(product, data)
        assert answered.startswith(f"HTTP/1.1 {status} ".encode())
        assert message in json.loads(answer_body)["error"]["message"]
        assert not upstream.requests


async def test_passthrough_refuses_brotli() -> None:
    """It is known, and cannot be inflated here: 400, not something that the backend cannot read."""
    async with ScriptedUpstream() as upstream, serving(upstream) as product:
        data = request("POST", "/v1/responses", "Content-Encoding: br", body=b"\x0b\x02\x80hello\x03")
        answered, _ = await fetch(product, data)
        assert answered.split(b" ")[1] == b"400"
        assert not upstream.requests


async def test_passthrough_does_not_wait_for_leave_to_send() -> None:
    """`Expect: 100-continue` is answered here; a backend that does not know it is not waited for."""
    async with ScriptedUpstream([read, send(NO_BODY)]) as upstream, serving(upstream) as product:
        with await RawClient.open(product.address) as client:
            await client.send_bytes(request("POST", "/v1/files", "Expect: 100-continue", "Content-Length: 4"))
            assert (await client.read_head()).startswith(b"HTTP/1.1 100 ")
            await client.send_bytes(b"body")
            assert (await client.read_head()).startswith(b"HTTP/1.1 200 ")
        assert upstream.requests[0].body == b"body"
        assert "Expect" not in upstream.requests[0].headers


async def test_passthrough_streams_a_large_body_in_both_directions() -> None:
    """20 MiB up and 20 MiB down arrive byte for byte, and neither is gathered first."""
    block = bytes(range(256)) * 256
    times = 320
    size = len(block) * times
    gate = Gate()
    script: list[Step] = [
        read,
        send(head(f"Content-Length: {size}")),
        flood(block, times // 2),
        gate,
        flood(block, times // 2),
    ]
    async with ScriptedUpstream(script) as upstream, serving(upstream) as product:
        with await RawClient.open(product.address) as client:
            await client.send_bytes(request("POST", "/v1/files", f"Content-Length: {size}"))
            for _ in range(times // 2):
                await client.send_bytes(block)
            peer = await upstream.peer()
            await eventually(lambda: sum(map(len, peer.segments)) > size // 4)
            for _ in range(times // 2):
                await client.send_bytes(block)
            await client.read_head()
            body = await client.read_exactly(size // 2)
            await soon(gate.reached)
            gate.open()
            body += await client.read_exactly(size // 2)
        assert body == block * times
        assert upstream.requests[0].body == block * times


# Answers


async def test_passthrough_keeps_status_and_headers() -> None:
    """The answer's head arrives as it was sent, without what is for one hop and without anything added but a date."""
    headers = [
        "Content-Type: application/json; charset=utf-8",
        "Set-Cookie: a=1; Path=/",
        "Set-Cookie: b=2",
        "x-lower: 1",
        "X-Request-Id: r",
        "Retry-After: 7",
        "Content-Length: 4",
    ]
    one_hop = ["Connection: close, X-Hop", "X-Hop: a", "Keep-Alive: timeout=5", "Proxy-Authenticate: x"]
    data = head(*headers, *one_hop, status="429 Too Many of Them") + b"null"
    _, answered, body = await passed(send(data), data=request())
    assert answered.startswith(b"HTTP/1.1 429 Too Many of Them\r\n")
    assert headers_of(answered) == lowered(*headers)
    assert body == b"null"


async def test_passthrough_keeps_date_and_server() -> None:
    """The backend's own are not replaced."""
    date = "Date: Thu, 01 Jan 1970 00:00:00 GMT"
    _, answered, _ = await passed(send(head("Server: uvicorn", date, "Content-Length: 0")), data=request())
    assert f"\r\n{date}\r\n".encode() in answered
    assert headers_of(answered) == ["server: uvicorn", "content-length: 0"]


@pytest.mark.parametrize(
    "data",
    [
        head("Content-Type: a/b", "Content-Length: 8") + b"\0\x01\xff body",
        head("Content-Type: a/b", "Transfer-Encoding: chunked") + chunk(b"\0\x01\xff") + chunk(b" body") + END,
        head("Content-Type: a/b", "Connection: close") + b"\0\x01\xff body",
        b"HTTP/1.0 200 OK\r\nContent-Type: a/b\r\n\r\n\0\x01\xff body",
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
        + head("Content-Type: a/b", "Content-Length: 8")
        + b"\0\x01\xff body",
    ],
    ids=["length", "chunks", "until end", "http-1.0", "interim"],
)
async def test_passthrough_keeps_the_body_of_an_answer(data: bytes) -> None:
    """However it is framed."""
    _, answered, body = await passed(send(data), close, data=request())
    assert body == b"\0\x01\xff body"
    assert [line for line in headers_of(answered) if not line.startswith("content-length")] == ["content-type: a/b"]


async def test_passthrough_adds_no_content_type() -> None:
    """An answer that has none gets none."""
    _, answered, _ = await passed(send(head("Content-Length: 2") + b"{}"), data=request())
    assert headers_of(answered) == ["content-length: 2"]


async def test_passthrough_does_not_inflate_answers() -> None:
    """What the client accepts is between it and the backend."""
    body = gzip.compress(b"hello")
    data = head("Content-Encoding: gzip", f"Content-Length: {len(body)}") + body
    _, answered, got = await passed(send(data), data=request("GET", "/v1/models", "Accept-Encoding: gzip"))
    assert got == body
    assert b"Content-Encoding: gzip" in answered


@pytest.mark.parametrize(
    ("method", "data", "expected"),
    [
        ("HEAD", head("Content-Type: a/b", "Content-Length: 1234"), ["Content-Type: a/b", "Content-Length: 1234"]),
        ("HEAD", head("Content-Type: a/b", "Transfer-Encoding: chunked"), ["Content-Type: a/b"]),
        ("GET", head("X-A: b", status="204 No Content"), ["X-A: b"]),
        ("DELETE", head(status="204 No Content"), []),
        ("GET", head('ETag: "x"', status="304 Not Modified"), ['ETag: "x"']),
        (
            "GET",
            head('ETag: "x"', "Content-Length: 99", status="304 Not Modified"),
            ['ETag: "x"'],  # a length is optional there, and aiohttp leaves it out
        ),
    ],
)
async def test_passthrough_keeps_answers_without_a_body(method: str, data: bytes, expected: list[str]) -> None:
    """Answers that have no body by their nature arrive as they are, and the connection can be used again."""
    async with ScriptedUpstream([read, send(data)]) as upstream, serving(upstream) as product:
        with await RawClient.open(product.address) as client:
            await client.send_bytes(request(method))
            answered, _ = await read_answer(client, is_head=True)
            assert answered.split(b" ", 1)[1].startswith(data.split(b" ", 1)[1].split(b"\r\n")[0])
            assert headers_of(answered) == lowered(*expected)
            await client.send_bytes(request("GET", "/v1/next"))
            assert (await client.read_head()).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_passthrough_does_not_follow_redirects(status: int) -> None:
    """They are the client's to follow."""
    async with ScriptedUpstream() as other:
        location = f"Location: http://127.0.0.1:{other.port}/v1/models"
        _, answered, _ = await passed(
            send(head(location, "Content-Length: 0", status=f"{status} Moved")), data=request()
        )
        assert answered.startswith(f"HTTP/1.1 {status} Moved\r\n".encode())
        assert location.encode() in answered
        assert not other.peers


async def test_passthrough_hands_a_stream_on_while_it_comes() -> None:
    """The client has the first event before the backend has sent the second, chunk by chunk and unchanged."""
    first, second = Gate(), Gate()
    script: list[Step] = [
        read,
        send(STREAM_HEAD),
        first,
        send(chunk(created())),
        second,
        send(chunk(completed()) + END),
    ]
    async with ScriptedUpstream(script) as upstream, serving(upstream) as product:
        with await RawClient.open(product.address) as client:
            await client.send_bytes(request("POST", "/v1/responses", body=b'{"stream":true}'))
            assert b"Content-Type: text/event-stream\r\n" in await client.read_head()
            await soon(first.reached)
            first.open()
            assert await client.read_exactly(len(chunk(created()))) == chunk(created())
            await soon(second.reached)
            second.open()
            assert await client.read_until(END) == chunk(completed()) + END


async def test_passthrough_serves_a_client_of_http_1_0() -> None:
    """It gets no chunks, and the end of the connection for the end of the body."""
    async with (
        ScriptedUpstream([read, send(STREAM_HEAD + chunk(stream("x")) + END)]) as upstream,
        serving(upstream) as product,
    ):
        with await RawClient.open(product.address) as client:
            await client.send_bytes(request("POST", "/v1/responses", body=b"{}", version="1.0"))
            answered, _, body = (await client.read_all()).partition(b"\r\n\r\n")
        assert b"chunked" not in answered.lower()
        assert body == stream("x")


async def test_passthrough_takes_an_offer_of_http_2() -> None:
    """`Upgrade: h2c` (curl --http2 sends it) is an offer that may be ignored."""
    headers = ["Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"]
    got, answered, body = await passed(
        send(json_answer({"ok": 1})), data=request("POST", "/v1/x", *headers, body=b"{}")
    )
    assert got.body == b"{}"
    assert not {"Upgrade", "HTTP2-Settings"} & set(got.headers)
    assert (answered[:12], body) == (b"HTTP/1.1 200", b'{"ok": 1}')


# Connections


async def test_passthrough_sends_a_post_in_one_segment() -> None:
    """Head and body of a request leave in one write."""
    async with ScriptedUpstream([read, send(NO_BODY)]) as upstream, serving(upstream) as product:
        await fetch(product, request("POST", "/v1/responses", body=b'{"a": 1}'))
        assert upstream.peers[0].segments == [upstream.requests[0].raw]


async def test_passthrough_uses_connections_again_for_what_can_be_repeated() -> None:
    """GETs share a connection, and one that turns out dead costs nothing; each POST has its own."""
    script: list[Step] = [read, send(NO_BODY), read, send(NO_BODY), read, close]
    async with ScriptedUpstream(script, then=[read, send(NO_BODY), stall]) as upstream, serving(upstream) as product:
        for _ in range(3):
            assert (await fetch(product, request()))[0].startswith(b"HTTP/1.1 200 ")
        assert [len(peer.requests) for peer in upstream.peers] == [3, 1]
        for _ in range(2):
            assert (await fetch(product, request("POST", body=b"x")))[0].startswith(b"HTTP/1.1 200 ")
        assert [len(peer.requests) for peer in upstream.peers] == [3, 1, 1, 1]


async def test_passthrough_never_sends_a_post_twice() -> None:
    """A backend that took it and ended without a word is an error."""
    async with ScriptedUpstream(then=[read, close]) as upstream, serving(upstream) as product:
        answered, body = await fetch(product, request("POST", body=b"x"))
        assert answered.startswith(b"HTTP/1.1 502 ")
        assert json.loads(body)["error"]["code"] == "upstream_disconnected"
        assert len(upstream.requests) == 1


async def test_passthrough_repeats_no_body_that_it_has_not_kept() -> None:
    """A streamed PUT has a connection of its own, since it could not be sent again."""
    body = b"x" * (5 * 2**20)
    script: list[Step] = [read, send(NO_BODY), read, close]
    async with ScriptedUpstream(script, then=[read, send(NO_BODY), stall]) as upstream, serving(upstream) as product:
        await fetch(product, request())
        answered, _ = await fetch(product, request("PUT", "/v1/files/1", body=body))
        assert answered.startswith(b"HTTP/1.1 200 ")
        assert upstream.peers[1].requests[0].body == body


# Ends


async def test_passthrough_says_when_nobody_listens() -> None:
    """A refused connection is a 502 with a body in the API's form."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    async with serving(f"http://127.0.0.1:{port}/v1") as product:
        answered, body = await fetch(product, request("POST", "/v1/responses", body=b"{}"))
        assert answered.startswith(b"HTTP/1.1 502 ")
        error = json.loads(body)["error"]
        assert (error["type"], error["code"]) == ("server_error", "upstream_unreachable")
        assert b"Content-Type: application/json" in answered
        assert b"Server:" not in answered


@pytest.mark.parametrize(
    ("steps", "code"),
    [
        ([close], "upstream_disconnected"),
        ([send(b"HTTP/1.1 2"), close], "upstream_disconnected"),
        ([send(b"SSH-2.0-x\r\n"), close], "upstream_protocol_error"),
        ([send(head("X: " + "y" * 9000)), close], "upstream_protocol_error"),
    ],
    ids=["nothing", "half a line", "no http", "long header"],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_passthrough_says_when_no_answer_came(method: str, steps: list[Step], code: str) -> None:
    """No answer, or none that can be understood, is a 502."""
    async with ScriptedUpstream(then=[read, *steps]) as upstream, serving(upstream) as product:
        answered, body = await fetch(product, request(method, body=b"x"))
        assert answered.startswith(b"HTTP/1.1 502 ")
        assert json.loads(body)["error"]["code"] == code


async def test_passthrough_says_when_nobody_accepts() -> None:
    """A connection that is not established within the limit is a 504."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        socks = [socket.socket() for _ in range(4)]
        for sock in socks:  # until its queue is full
            sock.setblocking(False)
            sock.connect_ex(address)
        try:
            async with serving(f"http://127.0.0.1:{address[1]}/v1", upstream__timeouts__connect=0.2) as product:
                answered, body = await fetch(product, request())
        finally:
            for sock in socks:
                sock.close()
        assert answered.startswith(b"HTTP/1.1 504 ")
        assert json.loads(body)["error"]["code"] == "upstream_timeout"


@pytest.mark.parametrize("end", [close, reset])
@pytest.mark.parametrize(
    "data",
    [
        STREAM_HEAD + chunk(created()),
        STREAM_HEAD + chunk(created()) + b"99\r\nda",
        head("Content-Length: 99") + b"half",
    ],
    ids=["between chunks", "in a chunk", "length"],
)
async def test_passthrough_breaks_off_when_the_backend_does(data: bytes, end: Step) -> None:
    """The client's answer does not end cleanly either: what is cut must look cut."""
    gate = Gate()
    async with ScriptedUpstream([read, send(data), gate, end]) as upstream, serving(upstream) as product:
        with await RawClient.open(product.address) as client:
            await client.send_bytes(request("POST", "/v1/responses", body=b"{}"))
            await client.read_head()
            gate.open()
            with pytest.raises((EOFError, ConnectionResetError)) as caught:
                await client.read_until(END)
            assert END not in str(caught.value).encode()


@pytest.mark.parametrize("how", ["leave", "reset", "half-close"])
@pytest.mark.parametrize(
    "steps",
    [[], [send(STREAM_HEAD)], [send(STREAM_HEAD + chunk(created()))]],
    ids=["before the head", "after the head", "in the stream"],
)
async def test_passthrough_cancels_when_the_client_vanishes(steps: list[Step], how: str) -> None:
    """Whatever the phase, the backend's connection is closed within a second."""
    async with ScriptedUpstream([read, *steps, stall]) as upstream, serving(upstream) as product:
        with await RawClient.open(product.address) as client:
            await client.send_bytes(request("POST", "/v1/responses", body=b"{}"))
            peer = await upstream.peer()
            await eventually(lambda: peer.requests)
            if steps:
                await client.read_head()
            if how == "half-close":
                client.half_close()
            elif how == "reset":
                client.reset()
            else:
                client.sock.close()
            async with asyncio.timeout(1):
                await peer.gone.wait()
        await product.running.door._pass_through.wait_idle()


async def test_passthrough_slows_the_backend_down_for_a_slow_client() -> None:
    """A client that does not read makes the backend wait, and nothing is gathered here."""
    block, times = b"x" * 2**16, 640
    script: list[Step] = [read, send(head(f"Content-Length: {len(block) * times}")), flood(block, times)]
    async with ScriptedUpstream(script) as upstream, serving(upstream) as product:
        with await RawClient.open(product.address, receive_buffer=2**14) as client:
            await client.send_bytes(request())
            await client.read_head()
            peer = await upstream.peer()
            sent = -1
            while sent != peer.sent:
                sent = peer.sent
                await asyncio.sleep(0.05)
            assert sent < len(block) * times // 2
            await client.read_exactly(len(block) * times - len(client.unread))


async def test_passthrough_counts_who_answered() -> None:
    """The status counts, and whether it was the backend's or the proxy's."""
    script: list[Step] = [read, send(head("Content-Length: 0", status="404 Not Found"))]
    async with ScriptedUpstream(script, then=[read, close]) as upstream, serving(upstream) as product:
        await fetch(product, request("POST"))
        await fetch(product, request("POST"))
        counted = product.running.metrics.http_requests
        assert {row: child._value.get() for row, child in counted.items() if child._value.get()} == {
            ("upstream", "4xx"): 1,
            ("proxy", "5xx"): 1,
        }
