"""Values as an operator writes them: durations, sizes, addresses, URLs, headers.

Each is a type for the fields of :mod:`proxy.config`: what is written is checked and turned into what the program works
with (seconds, bytes, host and port), is written back in the same form, and has a JSON Schema for editors. Messages say
what was expected and never repeat the value, which may be a secret in the wrong place.
"""

from __future__ import annotations

import ipaddress
import re
from fractions import Fraction
from typing import Annotated, Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    SecretStr,
    SerializationInfo,
    WithJsonSchema,
)

from proxy.protocol.profiles import PROFILES

_NUMBER: Final = r"[0-9]+(?:\.[0-9]+)?"
_DURATION: Final = re.compile("".join(rf"(?:({_NUMBER}){unit})?" for unit in ("h", "m", "s", "ms")))
_SIZE: Final = re.compile(rf"({_NUMBER})\s*([kKMGT]i?)?B?")
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*")
_URL: Final = re.compile(r"[\x21-\x7e]+")
_DATABASE: Final = re.compile(r"sqlite:///.|postgres(ql)?://.")
_PATH: Final = re.compile(r"(/[A-Za-z0-9._~-]+)*/?")
_FIELD_VALUE: Final = re.compile(r"[\x20-\x7e\xa0-\xff]*")
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_CREDENTIAL: Final = re.compile(r"[\x21-\x7e]+")

MAX_WORKERS: Final = 256

_IP = ipaddress.IPv4Address | ipaddress.IPv6Address
_IPS: Final = (ipaddress.IPv4Address, ipaddress.IPv6Address)

HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
"""A token (RFC 9110 section 5.6.2)."""

_OWN_HEADERS: Final = frozenset(
    {
        "accept",
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "host",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
    }
)
"""Headers that the proxy writes itself: a second one would break the request, or the border between two requests."""


class Address(NamedTuple):
    """Where to listen.

    Attributes:
        host: Name or IP address.
        port: 0..65535; 0 lets the system choose.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __repr__(self) -> str:
        return str(self)  # it stands in the system's errors


def parse_address(value: Any) -> Any:
    """``host:port``, ``[v6]:port`` or ``:port`` (all interfaces)."""
    if isinstance(value, Address):
        return value
    if isinstance(value, str):
        host, colon, port = value.rpartition(":")
        if colon and re.fullmatch(r"[0-9]{1,5}", port) and int(port) <= 65535 and _is_host(host):
            return Address(host.strip("[]") or "0.0.0.0", int(port))  # noqa: S104 - asked for by ":8080"
    raise ValueError("expected HOST:PORT, for example 127.0.0.1:8080 or [::1]:8080")


def parse_duration(value: Any) -> Any:
    """Seconds from ``30s``, ``5m``, ``1h30m``, ``250ms`` or a number."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        if re.fullmatch(_NUMBER, value):
            return float(value)
        match = _DURATION.fullmatch(value)
        if value and match is not None:
            hours, minutes, seconds, millis = (float(part or 0) for part in match.groups())
            return hours * 3600 + minutes * 60 + seconds + millis / 1000
    raise ValueError("expected a duration, for example 30s, 5m, 1h30m or 250ms")


def format_duration(seconds: float) -> str:
    """The shortest form that :func:`parse_duration` reads back."""
    for unit, length in (("h", 3600), ("m", 60), ("s", 1)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:.15g}{unit}"
    return f"{seconds * 1000:.15g}ms" if 0 < seconds < 1 else f"{seconds:.15g}s"


def parse_size(value: Any) -> Any:
    """Bytes from ``64MiB``, ``1GB`` or a number."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        match = _SIZE.fullmatch(value)
        if match is not None:
            number, unit = match[1], match[2] or ""
            base = 1024 if unit.endswith("i") else 1000
            return int(Fraction(number) * base ** _POWERS[unit.removesuffix("i").lower()])
    raise ValueError("expected a size, for example 512KiB, 64MiB or 1GB")


def format_size(size: int) -> str:
    """The shortest form that :func:`parse_size` reads back."""
    for unit, length in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= length and size % length == 0:
            return f"{size // length}{unit}"
    return f"{size}B"


def parse_url(value: Any) -> Any:
    """The base URL of a backend, without a slash at its end."""
    if not isinstance(value, str) or not _URL.fullmatch(value):
        raise ValueError("expected a URL, for example http://127.0.0.1:8000/v1")
    try:
        parts = urlsplit(value)
        has_port = parts.port != 0
    except ValueError as exc:
        raise ValueError("the host or the port of this URL is not valid") from exc
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("expected an http:// or https:// URL, for example http://127.0.0.1:8000/v1")
    if "@" in parts.netloc:
        raise ValueError("credentials do not belong into the URL; use api_key")
    if not has_port or not (_is_host(f"[{parts.hostname}]") or _is_host(parts.hostname)):
        raise ValueError("the host or the port of this URL is not valid")
    if "?" in value or "#" in value:
        raise ValueError("the URL may have neither a query nor a fragment")
    value = value.rstrip("/")
    if value.endswith("/responses"):
        raise ValueError("expected the base URL, without /responses at its end")
    return value


def address_of_url(url: str) -> Address:
    """Where a URL that :func:`parse_url` took leads to."""
    parts = urlsplit(url)
    return Address(parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))


def reaches(target: Address, listener: Address) -> bool:
    """Whether whoever connects to `target` on this machine meets who listens on `listener`; as far as names tell."""
    if target.port != listener.port or listener.port == 0:
        return False
    if target.host.lower() == listener.host.lower():
        return True
    ends = [_local_ip(target.host), _local_ip(listener.host)]
    if None in ends:
        return False
    # An IPv6 listener takes no IPv4 here, and each loopback address but for these stands for itself.
    versions = {ip.version for ip in ends if isinstance(ip, _IPS)}
    return len(versions) <= 1 and any(ip == "localhost" or (isinstance(ip, _IPS) and ip.is_unspecified) for ip in ends)


def _local_ip(host: str) -> _IP | Literal["localhost"] | None:
    """An address that is certainly this machine's own, or None."""
    if host.lower() == "localhost":
        return "localhost"
    ip = _ip(host)
    return ip if ip is not None and (ip.is_loopback or ip.is_unspecified) else None


def _is_host(host: str) -> bool:
    """A name, an IPv4 address, an IPv6 address in brackets, or nothing."""
    if host.startswith("[") and host.endswith("]"):
        return isinstance(_ip(host[1:-1]), ipaddress.IPv6Address)
    return not host or (len(host) <= 253 and _HOST_NAME.fullmatch(host) is not None)


def _ip(host: str) -> _IP | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _check_profile(value: Any) -> Any:
    if value not in list(PROFILES):
        raise ValueError(f"expected one of {', '.join(PROFILES)}")
    return value


def _check_path(value: Any) -> Any:
    if not isinstance(value, str) or not _PATH.fullmatch(value):
        raise ValueError("expected a path, for example /v1")
    return value.rstrip("/")


def check_number(value: Any) -> Any:
    """True is no number, although Python says so."""
    if isinstance(value, bool):
        raise ValueError("expected a whole number")  # noqa: TRY004 - pydantic wants a ValueError
    return value


def _check_workers(value: Any) -> Any:
    if value == "auto":
        return value
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_WORKERS:
        raise ValueError(f"expected a number from 1 to {MAX_WORKERS}, or auto")
    return value


def _split(value: Any) -> Any:
    """One string with commas is a list too, since an environment variable holds no other; null is an empty one."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return [] if value is None else value


def _check_name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError("expected a name: letters, digits, '.', '_' and '-', at most 64")
    return value


def _check_urls(urls: tuple[str, ...]) -> tuple[str, ...]:
    if not urls:
        raise ValueError("expected at least one URL")
    return urls


def _mapping(value: Any) -> Any:
    return {} if value is None else value


def _check_header_names(names: tuple[str, ...]) -> tuple[str, ...]:
    _raise([mistake for name in names if (mistake := _header_mistake(name))])
    return names


def _check_headers(headers: dict[str, str]) -> dict[str, str]:
    mistakes = [_header_mistake(name) for name in headers]
    mistakes += [
        f"the value of {name!r} holds characters that a header cannot hold (a line end, for example)"
        for name, value in headers.items()
        if not _FIELD_VALUE.fullmatch(value)
    ]
    _raise([mistake for mistake in mistakes if mistake])
    return headers


def _header_mistake(name: str) -> str | None:
    if not HEADER_NAME.fullmatch(name):
        return f"{name!r} cannot be the name of a header"
    return f"{name!r} is written by the proxy itself" if name.lower() in _OWN_HEADERS else None


def _raise(mistakes: list[str]) -> None:
    if mistakes:
        raise ValueError("; ".join(mistakes))


def _check_credential(secret: SecretStr) -> SecretStr:
    value = secret.get_secret_value()
    if not value:
        raise ValueError("is empty; leave it out to hand on the client's own Authorization")
    if not _CREDENTIAL.fullmatch(value):
        raise ValueError("expected the key alone: printable ASCII characters without spaces")
    return secret


def _check_database(secret: SecretStr) -> SecretStr:
    url = secret.get_secret_value()
    if not _URL.fullmatch(url) or not _DATABASE.match(url):
        raise ValueError("expected sqlite:///PATH or postgresql://USER:PASSWORD@HOST/DATABASE")
    return secret


def _show_credential(secret: SecretStr, info: SerializationInfo) -> str:
    return secret.get_secret_value() if info.context == REVEALED else str(secret)


REVEALED: Final = "revealed"
"""The context in which a credential is written as it is, and not as asterisks: for another process of ours."""

DURATION_SCHEMA: Final = {
    "anyOf": [
        {"type": "number", "minimum": 0},
        {"type": "string", "minLength": 1, "pattern": f"^({_NUMBER}|{_DURATION.pattern})$"},
    ]
}
SIZE_SCHEMA: Final = {
    "anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": f"^{_SIZE.pattern}$"}],
}
_NAMES_SCHEMA: Final = {"type": ["array", "string", "null"], "items": {"type": "string"}}
_HEADERS_SCHEMA: Final = {"type": ["object", "null"], "additionalProperties": {"type": "string"}}

Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    Field(ge=0, allow_inf_nan=False),
    PlainSerializer(format_duration, when_used="json"),
    WithJsonSchema(DURATION_SCHEMA),
]
Size = Annotated[
    int,
    BeforeValidator(parse_size),
    Field(ge=0),
    PlainSerializer(format_size, when_used="json"),
    WithJsonSchema(SIZE_SCHEMA),
]
Count = Annotated[int, BeforeValidator(check_number), Field(ge=1), WithJsonSchema({"type": "integer", "minimum": 1})]
Workers = Annotated[
    int | Literal["auto"],
    BeforeValidator(_check_workers),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1, "maximum": MAX_WORKERS}, {"const": "auto"}]}),
]
Listen = Annotated[
    Address,
    BeforeValidator(parse_address),
    PlainSerializer(str, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": ":[0-9]{1,5}$"}),
]
Url = Annotated[str, BeforeValidator(parse_url), WithJsonSchema({"type": "string", "pattern": "^https?://"})]
Urls = Annotated[
    tuple[Url, ...],
    BeforeValidator(_split),
    AfterValidator(_check_urls),
    WithJsonSchema({"anyOf": [{"type": "array", "minItems": 1, "items": {"type": "string"}}, {"type": "string"}]}),
]
Name = Annotated[str, AfterValidator(_check_name), WithJsonSchema({"type": "string"})]
Aliases = Annotated[dict[str, str], BeforeValidator(_mapping), WithJsonSchema(_HEADERS_SCHEMA)]
ProfileName = Annotated[str, BeforeValidator(_check_profile), WithJsonSchema({"enum": list(PROFILES)})]
BasePath = Annotated[str, BeforeValidator(_check_path)]
Names = Annotated[tuple[str, ...], BeforeValidator(_split), WithJsonSchema(_NAMES_SCHEMA)]
HeaderNames = Annotated[
    tuple[str, ...], BeforeValidator(_split), AfterValidator(_check_header_names), WithJsonSchema(_NAMES_SCHEMA)
]
Headers = Annotated[
    dict[str, str], BeforeValidator(_mapping), AfterValidator(_check_headers), WithJsonSchema(_HEADERS_SCHEMA)
]
Database = Annotated[
    SecretStr,
    AfterValidator(_check_database),
    PlainSerializer(_show_credential, when_used="json-unless-none"),
    WithJsonSchema({"type": "string"}),
]
"""The URL of a database, which may hold a password."""
Credential = Annotated[
    SecretStr,
    AfterValidator(_check_credential),
    PlainSerializer(_show_credential, when_used="json-unless-none"),
    WithJsonSchema({"type": "string"}),
]
