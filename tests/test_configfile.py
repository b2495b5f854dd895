"""From a file, the environment and flags to a configuration: what wins, and what is said about mistakes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.config import Config, option_paths
from proxy.configfile import FLAGS, ConfigError, load, variable
from proxy.protocol.profiles import PROFILES

NO_KEY = "expected the key alone: printable ASCII characters without spaces"
URL = "upstream: {url: 'http://backend/v1'}\n"
SET: dict[str, str] = {"SLIPSTREAM_UPSTREAM": "http://backend/v1"}

#: For each option a value that is not its default: what the file, the environment and a flag say.
OTHERS: dict[str, tuple[str, str, str]] = {
    "version": ("1", "1", "1"),
    "listen": ("h:1", "h:2", "h:3"),
    "admin": ("h:1", "h:2", "h:3"),
    "workers": ("2", "3", "auto"),
    "base_path": ("/a", "/b", "/c"),
    "inherit": ("[tools]", "tools,model", "instructions"),
    "max_event": ("1MiB", "2MiB", "3MiB"),
    "drain_timeout": ("1s", "2s", "3s"),
    "upstream.url": ("http://a", "http://b", "http://c"),
    "upstream.profile": ("vllm", "ollama", "openai"),
    "upstream.api_key": ("a", "b", "c"),
    "upstream.forward_headers": ("[a]", "b,c", "d"),
    "upstream.state": ("proxy", "upstream", "proxy"),
    "upstream.headers": ("{x-a: a}", "", ""),
    "upstream.drop_fields": ("[a]", "b,c", "d"),
    "upstream.keep_fields": ("[a]", "b,c", "d"),
    "upstream.compaction": ("proxy", "backend", "proxy"),
    "upstream.overflow_as_failed": ("false", "true", "false"),
    "upstream.timeouts.connect": ("1s", "2s", "3s"),
    "upstream.timeouts.first_event": ("1s", "2s", "3s"),
    "upstream.timeouts.idle": ("1s", "2s", "3s"),
    "upstream.timeouts.turn": ("1s", "2s", "3s"),
    "upstream.keepalive": ("1s", "2s", "3s"),
    "upstream.preconnect": ("1", "2", "3"),
    "upstream.retry_stale": ("false", "true", "false"),
    "upstream.max_in_flight": ("1", "2", "3"),
    "upstream.max_queued": ("1", "2", "3"),
    "upstream.queue_timeout": ("1s", "2s", "3s"),
    "backends": ("[{name: a, replicas: ['http://a']}]", "", ""),
    "routing.default": ("upstream", "", ""),
    "routing.balance": ("least_in_flight", "round_robin", "affinity"),
    "routing.load_factor": ("1.5", "2", "3"),
    "routing.retry_budget": ("0.1", "0.3", "0.4"),
    "routing.eject_after": ("1", "2", "4"),
    "routing.eject_time": ("1s", "2s", "3s"),
    "routing.max_eject_time": ("1s", "2s", "3s"),
    "routing.probe_interval": ("1s", "2s", "3s"),
    "routing.probe_timeout": ("1s", "3s", "4s"),
    "websocket.enabled": ("false", "true", "false"),
    "websocket.protocol": ("open-responses", "openai", "open-responses"),
    "websocket.rollout": ("always", "never", "always"),
    "websocket.steering": ("false", "true", "false"),
    "websocket.max_message": ("1MiB", "2MiB", "3MiB"),
    "websocket.max_items": ("1", "2", "3"),
    "websocket.lifetime": ("1s", "2s", "3s"),
    "websocket.ping_interval": ("1s", "2s", "3s"),
    "websocket.keepalive_interval": ("1s", "2s", "3s"),
    "websocket.write_timeout": ("1s", "2s", "3s"),
    "websocket.on_disconnect": ("drain", "cancel", "drain"),
    "websocket.disconnect_timeout": ("1s", "2s", "3s"),
    "websocket.compression": ("false", "true", "false"),
    "websocket.max_lanes": ("1", "2", "3"),
    "websocket.max_in_flight": ("1", "2", "3"),
    "websocket.max_queued": ("1", "2", "3"),
    "websocket.max_queued_bytes": ("1MiB", "2MiB", "3MiB"),
    "cache.max_responses": ("1", "2", "3"),
    "cache.max_bytes": ("1MiB", "2MiB", "3MiB"),
    "cache.max_total_bytes": ("1MiB", "2MiB", "3MiB"),
    "response_store.enabled": ("false", "true", "false"),
    "response_store.max_bytes": ("1MiB", "2MiB", "3MiB"),
    "response_store.max_age": ("1s", "2s", "3s"),
    "tracing.enabled": ("true", "false", "true"),
    "tracing.endpoint": ("http://a/v1/traces", "http://b/v1/traces", "http://c/v1/traces"),
    "tracing.sample_ratio": ("0.1", "0.2", "0.3"),
    "tracing.service_name": ("a", "b", "c"),
    "usage.flush_interval": ("2s", "3s", "4s"),
    "usage.labels": ("[x-a]", "x-b,x-c", "x-d"),
    "usage.spool.folder": ("a", "b", "c"),
    "usage.spool.max_bytes": ("1MiB", "2MiB", "3MiB"),
    "usage.file.path": ("a", "b", "c"),
    "usage.file.max_bytes": ("1MiB", "2MiB", "3MiB"),
    "usage.file.keep": ("1", "2", "3"),
    "usage.webhook.url": ("http://a", "http://b", "http://c"),
    "usage.webhook.api_key": ("a", "b", "c"),
    "usage.webhook.timeout": ("1s", "2s", "3s"),
    "usage.webhook.batch": ("1", "2", "3"),
    "usage.sql.url": ("sqlite:///a", "sqlite:///b", "sqlite:///c"),
    "usage.sql.table": ("a", "b", "c"),
    "live.enabled": ("false", "true", "false"),
    "live.inspect": ("true", "false", "true"),
    "log.level": ("debug", "warning", "error"),
    "log.format": ("json", "console", "json"),
}

#: Options of which a variable or a flag cannot say another value.
UNIQUE = ("version", "upstream.headers", "backends", "routing.default")

Write = Callable[[str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes the configuration file."""
    file = tmp_path / "slipstream.yaml"

    def write(text: str | bytes) -> Path:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return file

    return write


def mistakes(file: Path | None, environment: dict[str, str] | None = None, **flags: str) -> list[str]:
    """What is said about a configuration, a line for each mistake, the file's directory left out."""
    with pytest.raises(ConfigError) as caught:
        load(file, environment or {}, flags)
    text = str(caught.value)
    return (text.replace(f"{file.parent}/", "") if file else text).splitlines()


def nested(dotted: str, value: str) -> str:
    """YAML in which one option has a value."""
    text, *names = value, *reversed(dotted.split("."))
    for name in names:
        text = f"{{{name}: {text}}}"
    return text


def option(config: Config, dotted: str) -> Any:
    """The value of an option, as text that can be compared."""
    value: Any = config.model_dump(mode="python")
    for name in dotted.split("."):
        value = value[name]
    return value.get_secret_value() if hasattr(value, "get_secret_value") else value


# What wins


def test_table_of_options_is_complete() -> None:
    """The table of this test has every option."""
    assert set(OTHERS) == {".".join(path) for path in option_paths()}


@pytest.mark.parametrize("dotted", [name for name in OTHERS if name not in UNIQUE])
def test_later_source_wins(write: Write, dotted: str) -> None:
    """Flag over environment over file over default, for every option."""
    in_file, in_environment, in_flag = OTHERS[dotted]
    file = write(nested(dotted, in_file))
    flags = {} if dotted == "upstream.url" else {"upstream.url": "http://backend/v1"}
    name = "SLIPSTREAM_" + dotted.upper().replace(".", "__")

    default = None if dotted == "upstream.url" else option(load(None, {}, flags), dotted)
    from_file = option(load(file, {}, flags), dotted)
    from_environment = option(load(file, {name: in_environment}, flags), dotted)
    from_flag = option(load(file, {name: in_environment}, {**flags, dotted: in_flag}), dotted)

    assert default != from_file != from_environment != from_flag
    assert from_environment == option(load(None, {}, {**flags, dotted: in_environment}), dotted)
    assert from_flag == option(load(None, {}, {**flags, dotted: in_flag}), dotted)


@pytest.mark.parametrize("flag", list(FLAGS))
def test_short_variable_wins_over_the_long_one(flag: str) -> None:
    """What a flag sets has a short name in the environment too."""
    dotted = ".".join(FLAGS[flag])
    _, other, value = OTHERS[dotted]
    long = "SLIPSTREAM_" + dotted.upper().replace(".", "__")
    environment = {**SET, long: other, variable(flag): value}
    assert option(load(None, environment), dotted) == option(load(None, SET, {dotted: value}), dotted)


def test_variable_sets_a_header() -> None:
    """Below `headers` an underscore is the hyphen that a variable's name cannot hold."""
    config = load(None, {**SET, "SLIPSTREAM_UPSTREAM__HEADERS__X_TEAM_NAME": "r&d"})
    assert config.default.headers == {"x-team-name": "r&d"}


def test_empty_variable_counts_as_not_set(write: Write) -> None:
    """Composed environments hold empty variables for what was left out."""
    file = write(URL + "cache: {max_bytes: 1MiB}")
    environment = {"SLIPSTREAM_CACHE__MAX_BYTES": "", "SLIPSTREAM_LISTEN": "", "SLIPSTREAM_UPSTREAM": ""}
    assert load(file, environment) == load(file, {})


def test_variables_of_kubernetes_do_no_harm() -> None:
    """What Kubernetes injects for a service called slipstream, or called like one of the options, is left alone."""
    environment = {
        "SLIPSTREAM_PORT": "tcp://10.0.0.1:8080",
        "SLIPSTREAM_PORT_8080_TCP": "tcp://10.0.0.1:8080",
        "SLIPSTREAM_PORT_8080_TCP_PROTO": "tcp",
        "SLIPSTREAM_PORT_8080_TCP_PORT": "8080",
        "SLIPSTREAM_PORT_8080_TCP_ADDR": "10.0.0.1",
        "SLIPSTREAM_SERVICE_HOST": "10.0.0.1",
        "SLIPSTREAM_SERVICE_PORT": "8080",
        "SLIPSTREAM_SERVICE_PORT_HTTP": "8080",
        "SLIPSTREAM_ADMIN_SERVICE_HOST": "10.0.0.1",
        "SLIPSTREAM_UPSTREAM_PORT": "tcp://10.0.0.1:8000",
        "SLIPSTREAM__X_SERVICE_HOST": "10.0.0.1",
        "SLIPSTREAM_CACHE__X_SERVICE_HOST": "10.0.0.1",
        "SLIPSTREAM_CACHE__X_PORT_80_TCP_ADDR": "10.0.0.1",
        "SLIPSTREAM_VERSION": "0.1.0",
        "SLIPSTREAM_CONFIG": "elsewhere.yaml",
        "OTHER__CACHE__MAX_BYTES": "1",
    }
    assert load(None, {**SET, **environment}) == load(None, SET)


def test_file_takes_references(write: Write) -> None:
    """Numbers, switches and secrets come from the environment and from files, whatever is in them."""
    file = write(
        """
        upstream:
          url: http://${HOST}:${PORT:-8000}/v1
          api_key: ${KEY}
          headers: {x-pass: 'pa$$word'}
        websocket: {enabled: '${WS}', lifetime: '${AGE}', max_lanes: '${LANES}'}
        """
    )
    config = load(file, {"HOST": "gpu", "KEY": "{evil:yaml}", "WS": "off", "AGE": "5m", "LANES": "7"})
    assert config.default.replicas[0] == "http://gpu:8000/v1"
    assert config.default.api_key is not None
    assert config.default.api_key.get_secret_value() == "{evil:yaml}"
    assert config.default.headers == {"x-pass": "pa$word"}
    assert (config.websocket.enabled, config.websocket.lifetime, config.websocket.max_lanes) == (False, 300, 7)


def test_file_may_be_of_any_form_of_yaml(write: Write) -> None:
    """A byte order mark, JSON, anchors, dates in headers, and keys that YAML reads as switches are no obstacles."""
    text = b'\xef\xbb\xbf{"upstream": {"url": "http://h/v1", "headers": {"x-version": 2026-01-01, "on": "y", 1: "z"}}}'
    assert load(write(text), {}).default.headers == {"x-version": "2026-01-01", "on": "y", "1": "z"}
    anchored = "upstream: {url: http://h/v1, timeouts: &t {idle: 1s}}\nlog: {level: info}\ncache: {<<: {max_bytes: 5}}"
    assert load(write(anchored), {}).cache.max_bytes == 5


def test_file_may_have_several_backends(write: Write) -> None:
    """A list of them, with references, in place of the only one; a variable cannot hold one."""
    text = """
    backends:
      - {name: a, replicas: ["http://${HOST}:1/v1", "http://h:2/v1"], timeouts: {idle: 1s}}
      - {name: b, replicas: http://h:3/v1, models: x, aliases: {y: x}, api_key: "${KEY}"}
    routing: {default: b}
    """
    config = load(write(text), {"HOST": "gpu", "KEY": "k"})
    first, second = config.served
    assert (first.replicas, first.timeouts.idle) == (("http://gpu:1/v1", "http://h:2/v1"), 1)
    assert (second.replicas, second.models, second.aliases) == (("http://h:3/v1",), ("x",), {"y": "x"})
    assert config.default is second
    [said] = mistakes(None, {"SLIPSTREAM_BACKENDS": "a"})
    assert said == "SLIPSTREAM_BACKENDS: backends: expected a list"


# What is said about mistakes


def test_all_mistakes_are_named_at_once(write: Write) -> None:
    """Each with file, line and path, in the file's order, whatever their kind."""
    file = write(
        """version: 2
listn: 127.0.0.1:80
on: 1
upstream:
  url: ${NOPE}
  api_key: ${file:/nowhere/key}
  profile: vlm
  headers: {Host: x}
  timeouts:
    idel: 3
    connect: soon
cache:
  max_bytes: 1MiB
  max_bytes: 2MiB
  max_responses: 0
websocket:
  enabled: perhaps
  lifetime: [1]
log: verbose
max_bytes: 5
"""
    )
    assert mistakes(file) == [
        "slipstream.yaml:1: version: expected 1",
        "slipstream.yaml:2: listn: unknown option; did you mean listen?",
        "slipstream.yaml:3: on: unknown option",
        "slipstream.yaml:5: upstream.url: the environment variable NOPE is not set",
        "slipstream.yaml:6: upstream.api_key: the file /nowhere/key cannot be read: No such file or directory",
        f"slipstream.yaml:7: upstream.profile: expected one of {', '.join(PROFILES)}",
        "slipstream.yaml:8: upstream.headers: 'Host' is written by the proxy itself",
        "slipstream.yaml:10: upstream.timeouts.idel: unknown option; did you mean upstream.timeouts.idle?",
        "slipstream.yaml:11: upstream.timeouts.connect: expected a duration, for example 30s, 5m, 1h30m or 250ms",
        "slipstream.yaml:14: cache.max_bytes: occurs twice",
        "slipstream.yaml:15: cache.max_responses: must be at least 1",
        "slipstream.yaml:17: websocket.enabled: expected true or false",
        "slipstream.yaml:18: websocket.lifetime: expected a duration, for example 30s, 5m, 1h30m or 250ms",
        "slipstream.yaml:19: log: expected a mapping of options",
        "slipstream.yaml:20: max_bytes: unknown option; did you mean cache.max_bytes?",
    ]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a: [", 1, "is not valid YAML"),
        (URL + "a: b: c", 2, "is not valid YAML: mapping values are not allowed here"),
        ("a:\n\t- b", 2, "is not valid YAML: found character '\\t'"),
        ("a: b\n\n\x01", 3, "is not valid YAML: special characters"),
        ("a: b\n---\nc: d", 2, "is not valid YAML: expected a single document in the stream but found another"),
        ("api_key: !sk-secret x", 1, "is not valid YAML: could not determine a constructor for the tag"),
        ("api_key: *sk-secret", 1, "is not valid YAML: found undefined alias"),
        ("api_key: !sk!secret x", 1, "is not valid YAML: found undefined tag handle"),
        ("- a", 1, "expected a mapping of options"),
        ("just text", 1, "expected a mapping of options"),
        ("? [a]\n: b", 1, "expected a word as key"),
    ],
)
def test_wrong_yaml_is_named_with_its_line(write: Write, text: str, line: int, message: str) -> None:
    """What cannot be parsed is said in one line or two, without what may be a secret."""
    said = mistakes(write(text))
    assert said[0].startswith(f"slipstream.yaml:{line}: {message}")
    assert "secret" not in "".join(said)


@pytest.mark.parametrize(
    "text", ["a: &x [*x]", "a: !!int sk-secret", "[" * 500, "a: !!timestamp sk-secret", "a: !!bool x"]
)
def test_yaml_that_python_cannot_hold_is_a_mistake_too(write: Write, text: str) -> None:
    """Loops, depths and tags that do not fit are no traceback."""
    [said] = mistakes(write(text))
    assert said.startswith("slipstream.yaml")
    assert "secret" not in said


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "cache:\n"])
def test_file_without_a_backend_says_how_to_name_one(write: Write, text: str) -> None:
    """An empty file is a configuration in which the only required option is missing."""
    [said] = mistakes(write(text))
    assert said.startswith("slipstream.yaml: upstream.url: is required")
    assert "--upstream" in said
    assert load(write(text), SET).default.replicas[0] == SET["SLIPSTREAM_UPSTREAM"]


def test_file_that_cannot_be_read_says_why(tmp_path: Path, write: Write) -> None:
    """Missing, a directory, no text."""
    [missing] = mistakes(tmp_path / "missing.yaml")
    assert missing == "missing.yaml: cannot be read: No such file or directory"
    [directory] = mistakes(tmp_path)
    assert directory.endswith("cannot be read: Is a directory")
    [binary] = mistakes(write(b"a: \xff"))
    assert binary == "slipstream.yaml: cannot be read: it is not UTF-8 text"


def test_mistakes_of_other_sources_name_them(write: Write) -> None:
    """A variable or a flag is named like a line of the file, and beside its mistakes."""
    environment = {
        "SLIPSTREAM_CACHE__MAX_BITES": "1GiB",
        "SLIPSTREAM_LISTEN": "8080",
        "SLIPSTREAM_DRAIN_TIMEOUT": "soon",
        "SLIPSTREAM_UPSTREAM__API_KEY": "sk-secret with spaces",
    }
    said = mistakes(write("log: {level: loud}"), environment, **{"upstream.url": "backend", "admin": "9100"})
    assert said == [
        "slipstream.yaml:1: log.level: expected 'debug', 'info', 'warning' or 'error'",
        "SLIPSTREAM_LISTEN: listen: expected HOST:PORT, for example 127.0.0.1:8080 or [::1]:8080",
        "--admin: admin: expected HOST:PORT, for example 127.0.0.1:8080 or [::1]:8080",
        "--upstream: upstream.url: expected an http:// or https:// URL, for example http://127.0.0.1:8000/v1",
        f"SLIPSTREAM_UPSTREAM__API_KEY: upstream.api_key: {NO_KEY}",
        "SLIPSTREAM_CACHE__MAX_BITES: cache.max_bites: unknown option; did you mean cache.max_bytes?",
        "SLIPSTREAM_DRAIN_TIMEOUT: drain_timeout: expected a duration, for example 30s, 5m, 1h30m or 250ms",
    ]


@pytest.mark.parametrize(
    ("variable_name", "value", "said"),
    [
        ("SLIPSTREAM_CAHCE__MAX_BYTES", "1", "cahce: unknown option; did you mean cache?"),
        ("SLIPSTREAM_CACHE__MAX_BYTES__X", "1", "cache.max_bytes: expected a size, for example 512KiB, 64MiB or 1GB"),
        ("SLIPSTREAM_CACHE__", "1", "cache.: unknown option"),
        ("SLIPSTREAM_UPSTREAM__HEADERS__HOST", "x", "upstream.headers: 'host' is written by the proxy itself"),
        ("SLIPSTREAM_WEBSOCKET__MAX_LANES", "\udc80", "websocket.max_lanes: expected text in UTF-8"),
        ("SLIPSTREAM_LOG__LEVEL", "\udc80", "log.level: expected text in UTF-8"),
    ],
)
def test_odd_variable_is_named(write: Write, variable_name: str, value: str, said: str) -> None:
    """A variable that names a section that is none, goes too deep or holds no text is named with its mistake."""
    file = write(URL + "log: {format: json}")
    assert mistakes(file, {variable_name: value}) == [f"{variable_name}: {said}"]


def test_values_that_exclude_each_other_name_the_line(write: Write) -> None:
    """What is right alone and wrong together is a mistake at the place of the one that names the other."""
    [said] = mistakes(write("listen: :8000\nupstream:\n  url: http://localhost:8000/v1\n"))
    assert said.startswith("slipstream.yaml:3: upstream.url: leads to where clients connect (listen: 0.0.0.0:8000)")


def test_mistakes_in_backends_name_their_place(write: Write) -> None:
    """In which of them, and its line; what was meant is looked for among the options of a backend."""
    file = write(
        """backends:
  - name: a
    replicas: [http://h:1/v1, h]
    profle: vllm
  - replicas: []
    timeouts: {idel: 3}
"""
    )
    assert mistakes(file) == [
        (
            "slipstream.yaml:3: backends[0].replicas[1]: expected an http:// or https:// URL, for example "
            "http://127.0.0.1:8000/v1"
        ),
        "slipstream.yaml:4: backends[0].profle: unknown option; did you mean backends[0].profile?",
        "slipstream.yaml:5: backends[1].name: is required",
        "slipstream.yaml:5: backends[1].replicas: expected at least one URL",
        "slipstream.yaml:6: backends[1].timeouts.idel: unknown option",
    ]
    twice = write("backends:\n  - {name: a, replicas: [http://h]}\n  - name: a\n    replicas: [http://h]\n")
    assert mistakes(twice) == ["slipstream.yaml:3: backends[1].name: is the name of another backend too"]
    both = write("upstream: {url: http://h}\nbackends:\n  - {name: a, replicas: [http://h]}\n")
    [said] = mistakes(both)
    assert said.startswith("slipstream.yaml:2: backends: is instead of upstream")


def test_variable_cannot_hide_a_mistake_of_the_file(write: Write) -> None:
    """A section that is a number stays a mistake although a variable sets an option in it."""
    [said] = mistakes(write(URL + "cache: 5"), {"SLIPSTREAM_CACHE__MAX_BYTES": "1"})
    assert said == "slipstream.yaml:2: cache: expected a mapping of options"


SECRET = "sk-0123456789abcdef"


@pytest.mark.parametrize(
    "text",
    [
        f"upstream: {{api_key: {{a: {SECRET}}}}}",
        f"upstream: {{api_key: [{SECRET}]}}",
        f"upstream: {{api_key: 'Bearer {SECRET}'}}",
        f"upstream: {{url: 'http://{SECRET}@h/v1', api_key: {SECRET}, keepalive: x}}",
        f"upstream: api_key:{SECRET}",
        f"upstream:\n  url: x\n  api_key:{SECRET}",
        f'upstream: {{headers: {{authorization: "{SECRET}\\n"}}}}',
        f"upstream: {SECRET}",
        f"listen: {SECRET}",
        f"cache: {{max_bytes: {SECRET}, max_responses: {SECRET}}}",
        f"log: {{level: {SECRET}}}\nwebsocket: {{enabled: {SECRET}}}",
        f"upstream: {{url: '${{{SECRET}}}'}}",
        SECRET,
    ],
)
def test_secret_is_in_no_message(write: Write, text: str) -> None:
    """Wherever a key was put by mistake, what is said about it does not repeat it."""
    assert SECRET not in "\n".join(mistakes(write(text)))
    assert SECRET not in "\n".join(mistakes(None, {"SLIPSTREAM_UPSTREAM": SECRET, "SLIPSTREAM_LISTEN": SECRET}))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(
    text=st.text(st.sampled_from("ab: \n-{}[]!&*#\"'$?|>,\t%@01.<~\u2028\ud7ff"), max_size=60) | st.binary(max_size=40)
)
def test_any_file_is_loaded_or_refused(write: Write, text: str | bytes) -> None:
    """Whatever is in the file, the answer is a configuration or a list of mistakes."""
    with contextlib.suppress(ConfigError):
        load(write(text), SET)
