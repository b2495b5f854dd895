"""Codex CLI: one task in a process (`codex exec`), or a conversation with the server behind its interfaces."""

from __future__ import annotations

import contextlib
import itertools
import json
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.clients.programs import Finished, Program, node_packages, run, talking
from tests.clients.scripted import Call, Say
from tests.rig.sdk import WEATHER_TOOL

#: Not in Codex's own list, so that it takes what it says of an unknown model: tools in the request, `exec_command` one.
UNKNOWN_MODEL: Final = "scripted"

_CONFIG: Final = """\
model = "{model}"
model_provider = "proxy"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false
{more}
[model_providers.proxy]
name = "proxy"
base_url = "{base_url}"
wire_api = "responses"
env_key = "PROXY_API_KEY"
supports_websockets = true
stream_idle_timeout_ms = {patience}
[analytics]
enabled = false
"""

#: As little prompt, and as few tools of its own, as Codex can do with: for a model that reads a few hundred tokens.
_SMALL: Final = """\
model_instructions_file = "instructions.md"
project_doc_max_bytes = 0
web_search = "disabled"
include_permissions_instructions = false
include_apps_instructions = false
include_environment_context = false
include_collaboration_mode_instructions = false
[agents]
enabled = false
[skills]
include_instructions = false
[features]
goals = false
view_image = false
shell_tool = false
unified_exec = false
"""

Message = dict[str, Any]


def shell(*commands: str, thinking: bool = False) -> Call:
    """Ask for commands to be run, all of them at once."""
    return Call([("exec_command", {"cmd": command}) for command in commands], thinking=thinking)


#: A task with five tool calls in three rounds, some of them at once.
TASK: Final = (
    shell("echo one", thinking=True),
    shell("echo two", "echo three"),
    shell("seq 2000", "cat no-such-file"),
    Say("It is done.", thinking=True),
)


@dataclass(frozen=True)
class Codex:
    """Codex with a configuration.

    Attributes:
        folder: Its home and working directory.
        release: Which one it is: the name of a lock file's folder.
    """

    folder: Path
    release: str

    @classmethod
    def at(
        cls,
        folder: Path,
        base_url: str,
        *,
        model: str = UNKNOWN_MODEL,
        more: str = "",
        release: str = "codex",
        patience: float = 300,
    ) -> Codex:
        """Configure it for a server.

        Args:
            folder: Where its files go.
            base_url: The server's base URL.
            model: The model to ask for.
            more: Further lines of the configuration.
            release: Which Codex: the name of a lock file's folder.
            patience: Seconds without an event after which it gives up on a stream.
        """
        home = folder / "codex"
        home.mkdir()
        (home / "instructions.md").write_text("Use the tools.")
        (home / "config.toml").write_text(
            _CONFIG.format(base_url=base_url, model=model, more=more, patience=round(patience * 1000))
        )
        return cls(folder, release)

    def exec(self, prompt: str) -> CodexRun:
        """Do one task."""
        options = ["--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        return CodexRun(run([self._program(), "exec", *options, prompt], folder=self.folder, **self._environ()))

    @contextlib.contextmanager
    def app_server(self, tools: Callable[[str, Any], str], *specs: Message) -> Iterator[AppServer]:
        """Run the server behind Codex's interfaces, with one conversation.

        Args:
            tools: Runs a tool of the client's own, given its name and arguments.
            specs: Those tools.
        """
        with talking([self._program(), "app-server"], folder=self.folder, **self._environ()) as program:
            server = AppServer(program, tools)
            server.open(self.folder, list(specs))
            yield server

    def _program(self) -> Path:
        machine = {"arm64": "aarch64"}.get(platform.machine(), platform.machine())
        system = {"Darwin": "apple-darwin"}.get(platform.system(), "unknown-linux-musl")
        (program,) = node_packages(self.release).glob(f"@openai/codex*/vendor/{machine}-{system}/*/codex")
        return program

    def _environ(self) -> dict[str, str]:
        return {"CODEX_HOME": str(self.folder / "codex"), "PROXY_API_KEY": "unused"}


@dataclass(frozen=True)
class CodexRun:
    """What `codex exec` did.

    Attributes:
        finished: How it ended.
    """

    finished: Finished

    @property
    def events(self) -> list[Message]:
        """What it reported, one after the other."""
        return [json.loads(line) for line in self.finished.output.splitlines() if line.startswith("{")]

    @property
    def items(self) -> list[Message]:
        """What it did and said."""
        return [event["item"] for event in self.events if event["type"] == "item.completed"]

    @property
    def commands(self) -> list[str]:
        """What its commands wrote."""
        return [item["aggregated_output"] for item in self.items if item["type"] == "command_execution"]

    @property
    def answer(self) -> str:
        """Its last message."""
        return str([item["text"] for item in self.items if item["type"] == "agent_message"][-1])


def weather_talk(folder: Path, base_url: str, model: str) -> tuple[list[str], list[Any]]:
    """Two user turns about the weather, each with a tool call, for the small model; the answers, and the calls.

    The model knows one tool and reads a few hundred tokens. Codex can be given that tool, and little else to say.
    """
    calls: list[Any] = []

    def run_tool(name: str, arguments: Any) -> str:
        calls.append({name: arguments})
        return "It rains."

    tool = {name: WEATHER_TOOL[name] for name in ("type", "name", "description")}
    tool["inputSchema"] = WEATHER_TOOL["parameters"]
    codex = Codex.at(folder, base_url, model=model, more=_SMALL)
    with codex.app_server(run_tool, tool) as server:
        turns = [server.turn(text) for text in ("What is the weather in Paris?", "And now?")]
    return [str(turn[-1].get("text")) for turn in turns], calls


class AppServer:
    """A conversation over standard input and output, in JSON-RPC.

    Args:
        program: The server.
        tools: Runs a tool of the client's own.
    """

    def __init__(self, program: Program, tools: Callable[[str, Any], str]) -> None:
        self._program = program
        self._tools = tools
        self._numbers = itertools.count(1)
        self._thread_id = ""

    def open(self, folder: Path, tools: list[Message]) -> None:
        """Begin the conversation."""
        info = {"name": "tests", "version": "1"}
        self._ask("initialize", {"clientInfo": info, "capabilities": {"experimentalApi": True}})
        self._program.say({"method": "initialized"})
        thread = self._ask("thread/start", {"cwd": str(folder), "dynamicTools": tools})
        self._thread_id = thread["thread"]["id"]

    def turn(self, text: str) -> list[Message]:
        """Say something; the items that came of it, once Codex is done."""
        self._start(text)
        items, status = self._finish()
        assert status == "completed", items
        return items

    def interrupted_turn(self, text: str) -> str:
        """Say something, and stop Codex as soon as the answer begins; how the turn ended."""
        turn_id = self._start(text)
        while self._next()["method"] != "item/agentMessage/delta":
            pass
        self._ask("turn/interrupt", {"threadId": self._thread_id, "turnId": turn_id})
        return self._finish()[1]

    def _start(self, text: str) -> str:
        says = {"threadId": self._thread_id, "input": [{"type": "text", "text": text}]}
        return str(self._ask("turn/start", says)["turn"]["id"])

    def _finish(self) -> tuple[list[Message], str]:
        """The items of the turn that runs, and how it ended."""
        items = []
        while True:
            message = self._next()
            if message["method"] == "item/completed":
                items.append(message["params"]["item"])
            elif message["method"] == "turn/completed":
                return items, message["params"]["turn"]["status"]

    def _ask(self, method: str, params: Message) -> Message:
        number = next(self._numbers)
        self._program.say({"id": number, "method": method, "params": params})
        while True:
            message = self._next()
            if message.get("id") == number:
                assert "result" in message, message
                return dict(message["result"])

    def _next(self) -> Message:
        """The next message that is no question; questions are answered."""
        while True:
            message = self._program.hear()
            if message.get("method") != "item/tool/call":
                return message
            params = message["params"]
            text = self._tools(params["tool"], params["arguments"])
            result = {"success": True, "contentItems": [{"type": "inputText", "text": text}]}
            self._program.say({"id": message["id"], "result": result})
