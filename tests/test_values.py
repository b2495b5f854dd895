"""What an operator writes for a duration, a size, an address, a URL, a header."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from proxy import values
from proxy.values import Address


def validate(kind: Any, value: object) -> Any:
    """What a field of this type makes of a value."""
    return TypeAdapter(kind).validate_python(value)


def complaint(kind: Any, value: object) -> str:
    """Why a field of this type does not take a value."""
    with pytest.raises(ValidationError) as caught:
        validate(kind, value)
    return str(caught.value.errors()[0]["msg"])


# Durations


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("30s", 30),
        ("5m", 300),
        ("1h30m", 5400),
        ("250ms", 0.25),
        ("1h1m1s1ms", 3661.001),
        ("1.5s", 1.5),
        ("90", 90),
        ("0", 0),
        (90, 90),
        (0.5, 0.5),
        (0, 0),
    ],
)
def test_duration_takes_units_and_numbers(written: object, seconds: float) -> None:
    """Each way of writing a duration gives its seconds."""
    assert validate(values.Duration, written) == pytest.approx(seconds)


@pytest.mark.parametrize("written", ["", "s", "5 m", "m5", "5m1h", "1d", "five", "-3s", "1e3", True, None, [1], {}])
def test_duration_refuses_what_it_cannot_read(written: object) -> None:
    """Anything else is refused with an example of what is expected."""
    assert "30s" in complaint(values.Duration, written)


@pytest.mark.parametrize("written", [-1, -0.5, math.inf, math.nan, "9" * 400, "9" * 400 + "h"])
def test_duration_refuses_negative_and_endless_ones(written: object) -> None:
    """No timer can run for less than nothing, or for ever."""
    complaint(values.Duration, written)


@given(st.one_of(st.integers(0, 10**7), st.integers(0, 10**7).map(lambda millis: millis / 1000)))
def test_duration_reads_back_what_it_shows(seconds: float) -> None:
    """The form in which defaults are shown means the same value."""
    assert values.parse_duration(values.format_duration(seconds)) == pytest.approx(seconds, rel=1e-5)


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0s"), (30, "30s"), (600, "10m"), (3600, "1h"), (0.25, "250ms"), (90, "90s")]
)
def test_duration_shows_its_shortest_form(seconds: float, shown: str) -> None:
    """Defaults look like what an operator would write."""
    assert values.format_duration(seconds) == shown


# Sizes


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("64MiB", 2**26),
        ("1GB", 10**9),
        ("1GiB", 2**30),
        ("512KiB", 2**19),
        ("512kB", 512_000),
        ("2Ki", 2048),
        ("1.5MiB", 3 * 2**19),
        ("10 MB", 10**7),
        ("100B", 100),
        ("100", 100),
        (100, 100),
        (0, 0),
        ("9007199254740993", 9007199254740993),
    ],
)
def test_size_takes_units_and_numbers(written: object, size: int) -> None:
    """Each way of writing a size gives its bytes, exactly."""
    assert validate(values.Size, written) == size


@pytest.mark.parametrize(
    "written", ["", "MiB", "64i", "64iB", "64mb", "64 megabytes", "-1MiB", "1,5MiB", True, 1.5, None, [], {}]
)
def test_size_refuses_what_it_cannot_read(written: object) -> None:
    """Anything else is refused with an example of what is expected."""
    assert "64MiB" in complaint(values.Size, written)


def test_size_takes_numbers_of_any_length() -> None:
    """A number that no float can hold is a size like others, not a crash."""
    assert validate(values.Size, "9" * 400 + "GB") == int("9" * 400) * 10**9


@given(st.integers(0, 2**50))
def test_size_reads_back_what_it_shows(size: int) -> None:
    """The form in which defaults are shown means the same value."""
    assert values.parse_size(values.format_size(size)) == size


# Addresses


@pytest.mark.parametrize(
    ("written", "host", "port", "shown"),
    [
        ("127.0.0.1:8080", "127.0.0.1", 8080, "127.0.0.1:8080"),
        ("localhost:0", "localhost", 0, "localhost:0"),
        (":8080", "0.0.0.0", 8080, "0.0.0.0:8080"),
        ("[::1]:9100", "::1", 9100, "[::1]:9100"),
        ("[::]:65535", "::", 65535, "[::]:65535"),
        ("my-host.example:1", "my-host.example", 1, "my-host.example:1"),
    ],
)
def test_address_takes_host_and_port(written: str, host: str, port: int, shown: str) -> None:
    """Names, IPv4 and bracketed IPv6 addresses, and all interfaces."""
    address = validate(values.Listen, written)
    assert (address, str(address), repr(address)) == ((host, port), shown, shown)
    assert validate(values.Listen, address) == address


@pytest.mark.parametrize(
    "written",
    [
        "",
        "8080",
        8080,
        "host",
        "host:",
        "host:http",
        "host:65536",
        "host:-1",
        "host:8080 ",
        "a b:80",
        "a..b:80",
        "::1:8080",
        "[::g]:80",
        "[127.0.0.1]:80",
        "x" * 64 + ":80",
        "host:\u0663",
        None,
        True,
        ["127.0.0.1", 80],
    ],
)
def test_address_refuses_what_no_socket_takes(written: object) -> None:
    """What would fail later, with a traceback from the resolver, fails here with an example."""
    assert "127.0.0.1:8080" in complaint(values.Listen, written)


@pytest.mark.parametrize(
    ("target", "listener", "expected"),
    [
        (("127.0.0.1", 80), ("127.0.0.1", 80), True),
        (("127.0.0.1", 80), ("127.0.0.1", 81), False),
        (("127.0.0.1", 80), ("0.0.0.0", 80), True),
        (("localhost", 80), ("127.0.0.1", 80), True),
        (("LOCALHOST", 80), ("localhost", 80), True),
        (("localhost", 80), ("0.0.0.0", 80), True),
        (("::1", 80), ("::", 80), True),
        (("127.0.0.1", 80), ("::", 80), False),
        (("127.0.0.2", 80), ("127.0.0.1", 80), False),
        (("10.0.0.1", 80), ("0.0.0.0", 80), False),
        (("gpu", 80), ("0.0.0.0", 80), False),
        (("gpu", 80), ("gpu", 80), True),
        (("127.0.0.1", 0), ("127.0.0.1", 0), False),
    ],
)
def test_address_knows_whom_it_reaches(target: tuple[str, int], listener: tuple[str, int], *, expected: bool) -> None:
    """Only what is certain counts: a port that the system chooses, or another machine's name, is none of it."""
    assert values.reaches(Address(*target), Address(*listener)) is expected


# URLs and paths


@pytest.mark.parametrize(
    ("written", "url", "address"),
    [
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1", ("127.0.0.1", 8000)),
        ("http://host/v1/", "http://host/v1", ("host", 80)),
        ("https://host", "https://host", ("host", 443)),
        ("HTTPS://Host:8443/", "HTTPS://Host:8443", ("host", 8443)),
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1", ("::1", 8000)),
        ("http://host/openai/deployments/x%20y/v1", "http://host/openai/deployments/x%20y/v1", ("host", 80)),
    ],
)
def test_url_takes_the_base_of_an_api(written: str, url: str, address: tuple[str, int]) -> None:
    """A base URL keeps its path, and loses the slash at its end."""
    assert validate(values.Url, written) == url
    assert values.address_of_url(url) == address


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("", "expected a URL"),
        (None, "expected a URL"),
        (8000, "expected a URL"),
        ("127.0.0.1:8000", "http://"),
        ("ws://host/v1", "http://"),
        ("http:///v1", "http://"),
        ("http://host:99999/v1", "host or the port"),
        ("http://host:0/v1", "host or the port"),
        ("http://host:x/v1", "host or the port"),
        ("http://[::1/v1", "host or the port"),
        ("http://a..b/v1", "host or the port"),
        ("http://host/v 1", "expected a URL"),
        ("http://host/v1\r\nX: y", "expected a URL"),
        ("http://h\u00f6st/v1", "expected a URL"),
        ("http://user:pw@host/v1", "api_key"),
        ("http://@host/v1", "api_key"),
        ("http://host/v1?", "query"),
        ("http://host/v1?a=b", "query"),
        ("http://host/v1#", "query"),
        ("http://host/v1/responses", "without /responses"),
        ("http://host/v1/responses/", "without /responses"),
    ],
)
def test_url_refuses_what_no_request_can_go_to(written: object, why: str) -> None:
    """Each mistake has its own words, and none of them repeats the value."""
    message = complaint(values.Url, written)
    assert why in message
    assert "pw" not in message


@pytest.mark.parametrize(("written", "path"), [("/v1", "/v1"), ("/", ""), ("", ""), ("/a/b.c/", "/a/b.c")])
def test_base_path_takes_paths(written: str, path: str) -> None:
    """The slash at the end is not part of it; none at all is the root."""
    assert validate(values.BasePath, written) == path


@pytest.mark.parametrize("written", ["v1", "/v1?x", "//", "/a b", "/\u00e4", None, 1])
def test_base_path_refuses_what_no_request_has(written: object) -> None:
    """A path that could never be asked for is a mistake."""
    assert "/v1" in complaint(values.BasePath, written)


# Names, headers, credentials


@pytest.mark.parametrize(
    ("written", "names"),
    [(["a", "b"], ("a", "b")), ("a, b,", ("a", "b")), ("a", ("a",)), ("", ()), ([], ()), (None, ())],
)
def test_names_take_lists_and_commas(written: object, names: tuple[str, ...]) -> None:
    """A variable of the environment can hold a list too."""
    assert validate(values.Names, written) == names


@pytest.mark.parametrize("name", ["Host", "content-length", "Transfer-Encoding", "connection", "user-agent", "a b", ""])
def test_headers_refuse_what_breaks_a_request(name: str) -> None:
    """What the proxy writes itself cannot be set or forwarded: two lengths are two borders between requests."""
    assert repr(name) in complaint(values.HeaderNames, [name])
    assert repr(name) in complaint(values.Headers, {name: "x"})


def test_headers_name_all_mistakes_and_no_value() -> None:
    """A value with a line end, from a file say, is refused by its name alone."""
    message = complaint(values.Headers, {"x-key": "secret\nhost: evil", "Host": "a", "x-\u2028": "b"})
    assert "'x-key'" in message
    assert "'Host'" in message
    assert "secret" not in message


def test_headers_take_text() -> None:
    """Names and values stay as they were written; null is none."""
    assert validate(values.Headers, {"X-Team": "r & d; \u00e9"}) == {"X-Team": "r & d; \u00e9"}
    assert validate(values.Headers, None) == {}


@pytest.mark.parametrize("secret", ["", "Bearer sk-1", "sk-1\r", "sk-1\nsk-2", "sk-\u00e9"])
def test_credential_refuses_what_no_header_can_hold(secret: str) -> None:
    """An empty key, a word too much or a stray line end are named without the key."""
    message = complaint(values.Credential, secret)
    assert "sk-" not in message


def test_credential_hides_itself() -> None:
    """Neither `repr` nor `str` show it."""
    secret = validate(values.Credential, "sk-secret")
    assert secret.get_secret_value() == "sk-secret"
    assert "sk-secret" not in f"{secret} {secret!r}"


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "x", None])
def test_count_refuses_less_than_one(value: object) -> None:
    """A limit of none would refuse everything, and `true` is no number."""
    complaint(values.Count, value)


@pytest.mark.parametrize("value", ["vllm ", "VLLM", 3, None, ["vllm"]])
def test_profile_names_those_there_are(value: object) -> None:
    """A wrong profile is answered with the right ones."""
    assert "vllm, sglang" in complaint(values.ProfileName, value)
