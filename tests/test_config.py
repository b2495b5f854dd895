"""The model of the configuration, its schema, and the examples that come with it."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from pydantic import ValidationError

from proxy import cli
from proxy.config import Address, Config, json_schema, option_paths
from proxy.configfile import load
from proxy.protocol.profiles import PROFILES

jsonschema = pytest.importorskip("jsonschema")  # comes with check-jsonschema, without types
EXAMPLES = Path(__file__).parents[1] / "config"
URL = {"url": "http://backend:8000/v1"}


def reference() -> dict[str, Any]:
    """The example that has every option, as it stands in its file."""
    document: dict[str, Any] = yaml.safe_load((EXAMPLES / "slipstream.yaml").read_text())
    return document


def value_at(document: Any, path: tuple[str, ...]) -> Any:
    """The value of an option in a nested document."""
    for name in path:
        document = document[name]
    return document


def paths_of(document: dict[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """All paths in a document down to what is no section."""
    for name, value in document.items():
        if isinstance(value, dict) and value:
            yield from paths_of(value, (*prefix, name))
        else:
            yield (*prefix, name)


# The model


def test_config_needs_the_upstream_only() -> None:
    """Everything else has a default, and the default is what the documents say."""
    config = Config.model_validate({"upstream": URL})
    assert config.listen == Address("127.0.0.1", 8080)
    assert config.admin == Address("127.0.0.1", 9100)
    assert config.default.timeouts.first_event == 600
    assert config.cache.max_bytes == 64 * 2**20
    assert config.conflicts() == []


@pytest.mark.parametrize("name", ["input", "previous_response_id", "stream", "stream_id", "generate", "type"])
def test_config_inherits_no_field_that_is_of_one_create(name: str) -> None:
    """It would make of each create the one before."""
    config = Config.model_validate({"upstream": URL, "inherit": ["tools", name]})
    assert config.conflicts() == [("inherit", f"cannot be carried over: {name}")]
    assert Config.model_validate({"upstream": URL, "inherit": ["tools", "instructions"]}).conflicts() == []


@pytest.mark.parametrize("path", list(option_paths()), ids=".".join)
def test_config_refuses_an_unknown_option_beside_each(path: tuple[str, ...]) -> None:
    """A misspelt option is a mistake in every section; nothing is ignored."""
    document: dict[str, Any] = {"upstream": dict(URL)}
    section = document
    for name in path[:-1]:
        section = section.setdefault(name, {})
    section[f"{path[-1]}x"] = 1
    with pytest.raises(ValidationError) as caught:
        Config.model_validate(document)
    assert [(error["type"], error["loc"]) for error in caught.value.errors()] == [
        ("extra_forbidden", (*path[:-1], f"{path[-1]}x"))
    ]


def test_config_takes_sections_whose_options_are_commented_out() -> None:
    """YAML says null for them."""
    sections = {"websocket": None, "cache": None, "log": None, "upstream": {**URL, "timeouts": None, "headers": None}}
    assert Config.model_validate(sections) == Config.model_validate({"upstream": URL})


def test_config_hides_its_secrets() -> None:
    """Neither the key nor the headers, which may hold one, are in its text."""
    upstream = {**URL, "api_key": "sk-secret-1", "headers": {"api-key": "secret-2"}}
    config = Config.model_validate({"upstream": upstream})
    shown = f"{config} {config!r} {config.upstream!r}"
    assert "secret-1" not in shown
    assert "secret-2" not in shown
    assert "secret-1" not in config.model_dump_json()


def test_config_hides_its_input_in_errors() -> None:
    """A mistake anywhere in a section does not print the key beside it."""
    with pytest.raises(ValidationError) as caught:
        Config.model_validate({"upstream": {"api_key": "sk-secret", "timeouts": "x"}})
    assert "sk-secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("section", "option", "value"),
    [
        ("websocket", "write_timeout", 0),
        ("websocket", "max_message", 0),
        ("websocket", "max_message", "4GiB"),
        ("websocket", "max_in_flight", 0),
        ("cache", "max_responses", 0),
        ("tracing", "sample_ratio", 1.1),
        ("tracing", "sample_ratio", -0.1),
        ("tracing", "sample_ratio", float("nan")),
        ("tracing", "service_name", ""),
    ],
)
def test_config_refuses_limits_that_let_nothing_through(section: str, option: str, value: object) -> None:
    """What could never work, or what aiohttp cannot count, is a mistake."""
    with pytest.raises(ValidationError):
        Config.model_validate({"upstream": URL, section: {option: value}})


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"listen": ":9100"}, "admin"),
        ({"admin": "127.0.0.1:8080"}, "admin"),
        ({"upstream": {"url": "http://127.0.0.1:8080/v1"}}, "upstream.url"),
        ({"upstream": {"url": "http://localhost:8080"}}, "upstream.url"),
        ({"listen": ":80", "upstream": {"url": "http://localhost/v1"}}, "upstream.url"),
        (
            {"tracing": {"enabled": True, "endpoint": "http://localhost:8080/v1/traces"}},
            "tracing.endpoint",
        ),
    ],
)
def test_config_finds_addresses_that_exclude_each_other(document: dict[str, Any], path: str) -> None:
    """Two listeners on one port, or a backend that is the proxy itself, cannot work."""
    config = Config.model_validate({"upstream": URL, **document})
    assert [found for found, _ in config.conflicts()] == [path]


@pytest.mark.parametrize("missing", ["opentelemetry", "opentelemetry.exporter.otlp.proto.http", "opentelemetry.sdk"])
def test_traces_without_their_extra_are_a_mistake(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    """It says what to install; whoever wants no traces hears nothing of it."""
    find = importlib.util.find_spec

    def find_spec(name: str) -> object:
        if name != missing and name.startswith(f"{missing}."):
            raise ModuleNotFoundError(name)
        return None if name == missing else find(name)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    wanted = Config.model_validate({"upstream": URL, "tracing": {"enabled": True}})
    [(path, message)] = wanted.conflicts()
    assert path == "tracing.enabled"
    assert "pip install 'slipstream-proxy[otel]'" in message
    assert Config.model_validate({"upstream": URL}).conflicts() == []


@pytest.mark.parametrize(
    "document",
    [
        {"tracing": {"enabled": False, "endpoint": "http://127.0.0.1:8080/v1/traces"}},
        {"tracing": {"enabled": True}},
        {"cache": {"max_bytes": "1MiB"}, "websocket": {"max_message": "64MiB"}},
        {"cache": {"max_bytes": "2GiB", "max_total_bytes": "1GiB"}},
        {"cache": {"max_bytes": 0}},
        {"upstream": {**URL, "timeouts": {"idle": "10s"}}, "websocket": {"keepalive_interval": "30s"}},
        {"upstream": {**URL, "drop_fields": ["a"], "keep_fields": ["a"]}},
        {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0"},
    ],
)
def test_config_allows_what_works_somehow(document: dict[str, Any]) -> None:
    """Odd combinations are the operator's choice."""
    assert Config.model_validate({"upstream": URL, **document}).conflicts() == []


# The schema


@pytest.mark.parametrize(
    "document",
    [
        {"upstream": {"url": "${URL}"}},
        {"upstream": URL, "cache": {"max_bytes": "${BYTES:-1GiB}", "max_responses": "${N}"}},
        {"upstream": {**URL, "profile": "${P}", "retry_stale": "${R}", "timeouts": {"idle": "${I}"}}},
        {"upstream": URL, "log": {"level": "${LEVEL}"}, "websocket": {"enabled": "${ON}"}, "listen": "${L}"},
        {"upstream": URL, "cache": None, "websocket": {"lifetime": 3600, "ping_interval": "1m30s"}},
        {"upstream": {**URL, "drop_fields": "a,b", "keep_fields": ["a"], "headers": {"a": "${B}"}, "api_key": "${K}"}},
    ],
)
def test_schema_takes_what_a_file_may_hold(document: dict[str, Any]) -> None:
    """References stand where numbers are expected, and sections may be empty."""
    jsonschema.validate(document, json_schema())


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"upstream": {}},
        {"upstream": URL, "listn": "x"},
        {"upstream": {"url": "127.0.0.1:8000"}},
        {"upstream": {**URL, "profile": "vlm"}},
        {"upstream": URL, "cache": {"max_bytes": "lots"}},
        {"upstream": URL, "cache": {"max_bytes": -1}},
        {"upstream": URL, "cache": {"max_responses": 0}},
        {"upstream": URL, "websocket": {"lifetime": "1 hour"}},
        {"upstream": URL, "websocket": {"enabled": "perhaps"}},
        {"upstream": URL, "listen": "8080"},
        {"upstream": URL, "version": 2},
        {"upstream": {**URL, "headers": {"a": 1}}},
    ],
)
def test_schema_refuses_what_the_loader_refuses(document: dict[str, Any]) -> None:
    """An editor marks the same mistakes."""
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, json_schema())


def test_schema_describes_every_option_with_its_default() -> None:
    """What an editor shows beside an option: words, and the default as one would write it."""
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    for path in option_paths():
        node = schema
        for name in path:
            ref = node.get("$ref") or node.get("anyOf", [{}])[0].get("$ref")
            node = (schema["$defs"][ref.rpartition("/")[2]] if ref else node)["properties"][name]
        assert node["description"].endswith((".", "`"))
        shown = value_at(reference(), path)
        if path != ("upstream", "url") and shown is not None:
            assert node["default"] == shown, path


def test_schema_in_the_tree_is_current() -> None:
    """The file that editors read says what the command prints; `slipstream schema > config/schema.json` renews it."""
    printed = CliRunner().invoke(cli.main, ["schema"]).stdout
    assert (EXAMPLES / "schema.json").read_text() == printed
    assert json.loads(printed)["title"] == "Slipstream"


# The examples


def test_reference_has_every_option_and_no_other() -> None:
    """`config/slipstream.yaml` leaves none out, in the model's own order."""
    assert list(paths_of(reference())) == list(option_paths())


def test_reference_shows_the_real_defaults() -> None:
    """What it says is what happens without it, but for the backend's URL."""
    shown = load(EXAMPLES / "slipstream.yaml", {})
    assert shown == Config.model_validate({"upstream": {"url": shown.default.replicas[0]}})


def test_reference_explains_every_option() -> None:
    """Each option has a comment of its own, before it or behind it, or shares one with those before it."""
    lines = (EXAMPLES / "slipstream.yaml").read_text().splitlines()
    names = {path[-1] for path in option_paths()}
    for number, line in enumerate(lines):
        name = line.strip().partition(":")[0]
        if name in names and not line.lstrip().startswith("#"):
            before = lines[number - 1].strip()
            assert "#" in line or before.startswith("#") or before.partition(":")[0] in names, line


@pytest.mark.parametrize("profile", [name for name in PROFILES if name != "generic"])
def test_example_for_each_backend_loads(profile: str) -> None:
    """Every backend that has a profile has a short example that says how to start it."""
    file = EXAMPLES / f"{profile}.yaml"
    config = load(file, {"OPENAI_API_KEY": "sk-test"})
    assert config.default.profile == profile
    assert config.conflicts() == []
    lines = file.read_text().splitlines()
    assert 5 <= len(lines) <= 20
    assert any(line.startswith("#   ") for line in lines)


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.stem)
def test_example_fits_the_schema(file: Path) -> None:
    """Editors find nothing to mark in the examples, and find the schema beside them."""
    text = file.read_text()
    jsonschema.validate(yaml.safe_load(text), json_schema())
    assert text.startswith("# yaml-language-server: $schema=schema.json\n")


@pytest.mark.parametrize(
    ("profile", "state", "expected"),
    [
        ("generic", None, False),
        ("generic", "upstream", True),
        ("openai", None, True),
        ("openai", "proxy", False),
        ("vllm", None, False),
    ],
)
def test_state_is_the_profiles_unless_it_is_said(profile: str, state: str | None, expected: bool) -> None:  # noqa: FBT001
    """Who is asked for what is not stored here."""
    upstream = {"url": "http://backend/v1", "profile": profile, "state": state}
    assert Config.model_validate({"upstream": upstream}).default.keeps_responses is expected
