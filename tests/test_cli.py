"""The command line: what reaches the server, what is printed, and with which exit code."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from proxy import __version__, app, cli, logs
from proxy.bench.link import Link
from proxy.bench.run import Plan, Results
from proxy.bench.workload import PRESETS, Sizes
from proxy.config import Config, json_schema
from proxy.configfile import FLAGS, variable
from proxy.workers import processors, supervisor

UPSTREAM = ("--upstream", "http://backend/v1")

#: For each flag what the file, the environment and the flag say, and how the option reads then.
VALUES: dict[str, tuple[str, str, str]] = {
    "upstream": ("http://file", "http://environment", "http://flag"),
    "profile": ("vllm", "ollama", "openai"),
    "listen": ("file:1", "environment:1", "flag:1"),
    "admin": ("file:1", "environment:1", "flag:1"),
    "workers": ("3", "auto", "2"),
    "log-format": ("json", "console", "auto"),
    "log-level": ("debug", "warning", "error"),
}
DEFAULTS = {
    "profile": "generic",
    "listen": "127.0.0.1:8080",
    "admin": "127.0.0.1:9100",
    "workers": "1",
    "log-format": "auto",
    "log-level": "info",
}


def run(*arguments: str, **environment: str) -> Result:
    """Run the command in this process."""
    result = CliRunner().invoke(cli.main, arguments, env=environment)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    assert "Traceback" not in result.output
    return result


@pytest.fixture(autouse=True)
def configured_logs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """How logging would have been set up, which would outlive the test."""
    calls: list[tuple[str, str]] = []
    monkeypatch.setattr(logs, "configure", lambda *settings: calls.append(settings))
    return calls


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """The configurations with which the server would have run."""
    configs: list[Config] = []

    async def serve(config: Config) -> int:
        configs.append(config)
        return 0

    async def serve_with(config: Config, workers: int) -> int:
        assert workers == processors.count(config.workers) > 1
        return await serve(config)

    monkeypatch.setattr(app, "serve", serve)
    monkeypatch.setattr(supervisor, "serve", serve_with)
    return configs


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port of this machine on which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    """Writes a configuration file; its name."""
    file = tmp_path / "slipstream.yaml"

    def write(text: str) -> str:
        file.write_text(text)
        return str(file)

    return write


def option(config: Config, flag: str) -> str:
    """The value of the option that a flag stands for."""
    value: Any = config
    for name in FLAGS[flag]:
        value = getattr(value, name)
    return str(value)


# serve


def test_serve_starts_without_a_file(served: list[Config], configured_logs: list[tuple[str, str]]) -> None:
    """The backend's URL is all that is needed."""
    assert run("serve", *UPSTREAM).exit_code == 0
    assert served == [Config.model_validate({"upstream": {"url": "http://backend/v1"}})]
    assert configured_logs == [("info", "auto")]


@pytest.mark.parametrize("flag", list(FLAGS))
def test_serve_lets_a_flag_win(served: list[Config], write: Callable[[str], str], flag: str) -> None:
    """Flag over environment over file over default, for each flag."""
    in_file, in_environment, in_flag = VALUES[flag]
    section: dict[str, Any] = {"upstream": {"url": "http://backend/v1"}}
    inner = section
    for name in FLAGS[flag][:-1]:
        inner = inner.setdefault(name, {})
    inner[FLAGS[flag][-1]] = in_file
    file = write(json.dumps(section))
    environment = {variable(flag): in_environment}

    if flag in DEFAULTS:
        run("serve", *UPSTREAM)
        assert option(served.pop(), flag) == DEFAULTS[flag]
    run("serve", "--config", file)
    run("serve", "-c", file, **environment)
    run("serve", "-c", file, f"--{flag}", in_flag, **environment)
    assert [option(config, flag) for config in served] == [in_file, in_environment, in_flag]


def test_serve_finds_its_file_in_the_environment(served: list[Config], write: Callable[[str], str]) -> None:
    """`SLIPSTREAM_CONFIG` is as good as `--config`, and other variables of the prefix are heard too."""
    file = write("upstream: {url: 'http://file/v1'}")
    run("serve", SLIPSTREAM_CONFIG=file, SLIPSTREAM_CACHE__MAX_BYTES="1GiB", SLIPSTREAM_PORT_8080_TCP="tcp://x")
    assert served[0].default.replicas == ("http://file/v1",)
    assert served[0].cache.max_bytes == 2**30


def test_serve_ends_with_the_code_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the process learns whether it was aborted."""

    async def serve(_: Config) -> int:
        return 143

    monkeypatch.setattr(app, "serve", serve)
    assert run("serve", *UPSTREAM).exit_code == 143


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "upstream.url: is required: the base URL of the backend"),
        (("--upstream", "backend:8000"), "--upstream: upstream.url: expected an http:// or https:// URL"),
        (("--upstream", ""), "--upstream: upstream.url: expected a URL"),
        (("--upstream", "http://sk-secret@h"), "--upstream: upstream.url: credentials do not belong into the URL"),
        (("--upstream", "http://localhost:8080/v1"), "--upstream: upstream.url: leads to where clients connect"),
        ((*UPSTREAM, "--listen", "8080"), "--listen: listen: expected HOST:PORT"),
        ((*UPSTREAM, "--listen", "a..b:80"), "--listen: listen: expected HOST:PORT"),
        ((*UPSTREAM, "--admin", ":8080"), "--admin: admin: is the address where clients connect"),
        ((*UPSTREAM, "--config", "/nowhere.yaml"), "/nowhere.yaml: cannot be read: No such file or directory"),
    ],
)
def test_serve_refuses_what_it_cannot_use(served: list[Config], arguments: tuple[str, ...], message: str) -> None:
    """One line on standard error that names the flag, exit code 1, no server."""
    result = run("serve", *arguments)
    assert (result.exit_code, result.stdout, served) == (1, "", [])
    assert result.stderr.startswith(message)
    assert len(result.stderr.splitlines()) == 1
    assert "secret" not in result.stderr


@pytest.mark.parametrize(("flag", "value"), [("--profile", "vlm"), ("--log-level", "loud"), ("--port", "80")])
def test_serve_explains_a_wrong_argument(flag: str, value: str) -> None:
    """Mistakes in the arguments themselves have exit code 2 and point to the help."""
    result = run("serve", *UPSTREAM, flag, value)
    assert result.exit_code == 2
    assert flag in result.stderr
    assert "--help" in result.stderr


@pytest.mark.parametrize("flag", ["--listen", "--admin"])
def test_serve_says_which_port_is_in_use(taken_port: int, flag: str) -> None:
    """One line with the address, for either listener."""
    flags = {"--listen": "127.0.0.1:0", "--admin": "127.0.0.1:0", flag: f"127.0.0.1:{taken_port}"}
    result = run("serve", *UPSTREAM, *(word for pair in flags.items() for word in pair))
    assert result.exit_code == 1
    assert result.stderr.startswith("slipstream: cannot start: Address already in use")
    assert f"127.0.0.1:{taken_port}" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_serve_says_which_address_is_not_its_own() -> None:
    """An address of another machine is no traceback (192.0.2.0/24 belongs to nobody, RFC 5737)."""
    result = run("serve", *UPSTREAM, "--admin", "127.0.0.1:0", "--listen", "192.0.2.1:8080")
    assert result.exit_code == 1
    assert result.stderr.startswith("slipstream: cannot start: Cannot assign requested address")
    assert "192.0.2.1:8080" in result.stderr


def test_serve_runs_on_asyncio_where_there_is_no_uvloop(served: list[Config], monkeypatch: pytest.MonkeyPatch) -> None:
    """uvloop is a help, not a need."""  # noqa: D403 - that is its name
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert run("serve", *UPSTREAM).exit_code == 0
    assert len(served) == 1


# check-config


def test_check_config_takes_a_good_file(write: Callable[[str], str]) -> None:
    """Exit code 0, and a word on standard output."""
    file = write("upstream: {url: 'http://backend/v1'}")
    result = run("check-config", file)
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"{file}: ok\n", "")


def test_check_config_names_all_mistakes(write: Callable[[str], str]) -> None:
    """Exit code 1, and a line for each on standard error: file, line, path, what is wrong."""
    file = write("listn: x\nupstream:\n  url: ${UNSET_IN_THIS_TEST}\ncache: {max_bytes: lots}\n")
    result = run("check-config", file)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines() == [
        f"{file}:1: listn: unknown option; did you mean listen?",
        f"{file}:3: upstream.url: the environment variable UNSET_IN_THIS_TEST is not set",
        f"{file}:4: cache.max_bytes: expected a size, for example 512KiB, 64MiB or 1GB",
    ]


def test_check_config_judges_what_serve_would_use(write: Callable[[str], str]) -> None:
    """The environment that completes the file for `serve` completes it here."""
    file = write("cache: {max_bytes: 1GiB}")
    assert run("check-config", file).exit_code == 1
    assert run("check-config", file, SLIPSTREAM_UPSTREAM="http://backend/v1").exit_code == 0


def test_check_config_needs_a_file() -> None:
    """A missing argument is a wrong call; a missing file is a mistake of the configuration."""
    assert run("check-config").exit_code == 2
    assert run("check-config", "/nowhere.yaml").exit_code == 1


# top (what it shows: tests/top)


@pytest.mark.parametrize("admin", ["9100", "ftp://proxy:1", "http://"])
def test_top_explains_a_wrong_address(admin: str) -> None:
    """From the flag, or from the variable that `serve` has too."""
    for result in (run("top", "--once", "--admin", admin), run("top", "--once", SLIPSTREAM_ADMIN=admin)):
        assert (result.exit_code, result.stdout) == (2, "")
        assert "expected HOST:PORT" in result.stderr


def test_top_needs_a_terminal() -> None:
    """It says what does not."""
    result = run("top")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "slipstream: top needs a terminal; --once prints what there is\n"


def test_top_says_that_nobody_is_there() -> None:
    """One line; scripts see it by the exit code."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        admin = f"127.0.0.1:{listener.getsockname()[1]}"
    result = run("top", "--once", "--admin", admin)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"slipstream: no live page at {admin}: Connection refused\n"


# schema, version, help


def test_schema_prints_json() -> None:
    """What is printed is the schema, and nothing else."""
    result = run("schema")
    assert json.loads(result.stdout) == json_schema()
    assert result.stderr == ""


def test_version_is_said_in_two_ways() -> None:
    """As a command, and as a flag."""
    assert run("version").stdout == run("--version").stdout == f"slipstream {__version__}\n"


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_the_commands(flag: str) -> None:
    """Each with a sentence."""
    text = run(flag).stdout
    for name, command in cli.main.commands.items():
        if not command.hidden:
            assert command.help is not None
            beginning = " ".join(command.help.split()[:4])
            assert any(line.split()[0] == name and beginning in line for line in text.splitlines() if line)


def test_help_of_serve_says_where_each_option_may_stand() -> None:
    """Flag, variable and default, in lines that a terminal holds, and the defaults are the real ones."""
    text = run("serve", "--help").stdout
    for flag in FLAGS:
        assert f"--{flag} " in text
        assert variable(flag) in text
    assert max(map(len, text.splitlines())) <= 100
    joined = " ".join(text.split())
    config = Config.model_validate({"upstream": {"url": "http://backend"}})
    for flag, default in DEFAULTS.items():
        assert f"default: {default}]" in joined
        assert option(config, flag) == default


@pytest.mark.parametrize("name", ["serve", "check-config", "top", "schema", "version"])
def test_help_of_a_command_is_a_sentence(name: str) -> None:
    """Every command says what it does."""
    command = cli.main.commands[name]
    assert isinstance(command, click.Command)
    assert command.help is not None
    assert command.help.partition("\n")[0].endswith(".")


@pytest.mark.parametrize("arguments", [["--version"], ["serve", "--config", "/nowhere.yaml"]])
def test_module_is_the_same_command(arguments: list[str]) -> None:
    """`python -m proxy` says what `slipstream` says, with the same exit code."""
    module = subprocess.run([sys.executable, "-m", "proxy", *arguments], capture_output=True, text=True, check=False)
    here = run(*arguments)
    assert (module.returncode, module.stdout, module.stderr) == (here.exit_code, here.stdout, here.stderr)


# The bench


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """What the bench would have measured."""
    seen: list[Plan] = []

    async def measure(plan: Plan, _introduction: str, _screen: object) -> Results:
        seen.append(plan)
        return Results()

    monkeypatch.setattr("proxy.bench.run.bench", measure)
    return seen


def test_bench_has_defaults_for_all(plans: list[Plan]) -> None:
    """Without anything it is a rollout of Codex's sizes, at a simulated backend, over a simulated link."""
    result = run("bench", OPENAI_API_KEY="")
    assert result.exit_code == 0
    (plan,) = plans
    assert (plan.upstream, plan.proxy, plan.headers, plan.serve_options) == (None, None, {}, ())
    assert (plan.turns, plan.rounds, plan.sizes) == (21, 6, PRESETS["codex"])
    assert plan.link == Link(0.05, 12.5e6, 1)
    assert plan.compresses is True  # as Codex does


def test_bench_takes_what_it_is_told(plans: list[Plan], tmp_path: Path) -> None:
    """Every option reaches the plan, in the units that things are measured in."""
    config = tmp_path / "s.yaml"
    config.touch()
    options = "--model m --rounds 7 --turns 3 --preset agents --tool-output 5 --history 6 --instructions 7 --tools 8"
    options += " --output-tokens 16 --tool-ms 250 --no-compress --rtt 20 --bandwidth 8 --tls-rtts 2 --linux-idle --token-rate 9"
    options += f" --turn-timeout 60 --profile vllm --config {config} --api-key-env K"
    result = run("bench", *UPSTREAM, *options.split(), "--header", "X-Team: a: b", K="secret")
    assert result.exit_code == 0, result.output
    assert "secret" not in result.output
    assert plans == [
        Plan(
            upstream="http://backend/v1",
            proxy=None,
            model="m",
            sizes=Sizes(instructions=7, tools=8, metadata=0, history=6, tool_output=5),
            headers={"X-Team": "a: b", "Authorization": "Bearer secret"},
            turns=3,
            output_tokens=16,
            rounds=7,
            link=Link(0.02, 1e6, 2, halves_when_idle=True),
            token_rate=9,
            pause=0.25,
            compresses=False,
            timeout=60,
            serve_options=("--config", str(config), "--profile", "vllm"),
        )
    ]


def test_bench_simulates_no_link_in_front_of_a_real_backend(plans: list[Plan]) -> None:
    """Unless it is asked to; and a header that is a key wins over the environment's."""
    run("bench", *UPSTREAM, "--model", "m", "--header", "authorization: Bearer mine", OPENAI_API_KEY="other")
    assert [(plan.link, plan.headers) for plan in plans] == [(None, {"authorization": "Bearer mine"})]


@pytest.mark.parametrize(("options", "compresses"), [("", False), ("--compress", True)])
def test_bench_compresses_as_its_preset_does(options: str, compresses: bool, plans: list[Plan]) -> None:  # noqa: FBT001 - a parameter of a test
    """Unless it is told otherwise."""
    run("bench", "--preset", "small", *options.split())
    assert [plan.compresses for plan in plans] == [compresses]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (UPSTREAM, "--upstream needs --model"),
        (("--proxy", "http://h/v1"), "--proxy needs --upstream"),
        (("--upstream", "ftp://h", "--model", "m"), "expected a base URL"),
        (("--upstream", "https://h/v1", "--model", "m", "--rtt", "50"), "in front of http:// only"),
        (("--header", "nothing"), "expected 'Name: value'"),
        ((*UPSTREAM, "--model", "m", "--proxy", "http://p/v1", "--profile", "vllm"), "not for --proxy"),
        (("--config", "/nowhere/to/be/found"), "does not exist"),
        (("--turns", "0"), "--turns"),
        (("--tool-output", "-1"), "--tool-output"),
    ],
)
def test_bench_refuses_what_makes_no_sense(arguments: tuple[str, ...], words: str, plans: list[Plan]) -> None:
    """Before anything is started, with exit code 2."""
    result = run("bench", *arguments)
    assert result.exit_code == 2
    assert words in " ".join(result.output.replace("│", " ").split())
    assert plans == []


def test_bench_that_failed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error is one line on standard error, and exit code 1; as JSON it is there too."""

    async def fail(*_: object) -> Results:
        return Results(error="HTTP 404: no such model")

    monkeypatch.setattr("proxy.bench.run.bench", fail)
    result = run("bench", "--json")
    assert result.exit_code == 1
    assert result.stderr.endswith("slipstream: HTTP 404: no such model\n")
    assert json.loads(result.stdout)["error"] == "HTTP 404: no such model"
