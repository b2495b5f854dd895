"""A headless Chromium, driven over its DevTools protocol: Debian's package, and nothing of npm's."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from websockets.asyncio.client import ClientConnection, connect

from tests.rig.processes import serving

_READY: Final = re.compile(r"^DevTools listening on (ws://\S+)$", re.MULTILINE)
_STEP: Final = 0.05

KEYS: Final = {
    "ArrowDown": 40,
    "ArrowUp": 38,
    "Home": 36,
    "End": 35,
    "Enter": 13,
    "Escape": 27,
    "Tab": 9,
}


class PageFailed(Exception):
    """The page, or what was asked of it, went wrong."""


class Page:
    """One tab.

    Args:
        socket: The DevTools' WebSocket.

    Attributes:
        problems: What the console and the network had to complain about.
    """

    def __init__(self, socket: ClientConnection) -> None:
        self.problems: list[str] = []
        self._socket = socket
        self._numbers = itertools.count(1)
        self._session: dict[str, str] = {}
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def open(self) -> None:
        """Make the tab."""
        target = await self.call("Target.createTarget", url="about:blank")
        session = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = {"sessionId": session["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")

    async def read(self) -> None:
        """Take what the browser says, until it says no more."""
        async for message in self._socket:
            said = json.loads(message)
            if "id" in said:
                self._answers.pop(said["id"]).set_result(said)
            else:
                self._note(said["method"], said.get("params", {}))

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Order something.

        Raises:
            PageFailed: it was refused.
        """
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send(json.dumps({"id": number, "method": method, "params": params, **self._session}))
        async with asyncio.timeout(30):
            said = await answer
        if "error" in said:
            raise PageFailed(f"{method}: {said['error']['message']}")
        result: dict[str, Any] = said["result"]
        return result

    async def size(self, width: int, height: int) -> None:
        """Give the page its size."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    async def prefer(self, scheme: str) -> None:
        """Prefer light or dark."""
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    async def value(self, expression: str) -> Any:
        """What an expression is.

        Raises:
            PageFailed: it raised.
        """
        said = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in said:
            raise PageFailed(f"{expression}: {said['exceptionDetails']}")
        return said["result"].get("value")

    async def until(self, expression: str, seconds: float = 20) -> None:
        """Wait until an expression is true.

        Raises:
            PageFailed: it does not become true in time.
        """
        for _ in range(int(seconds / _STEP)):
            if await self.value(f"Boolean({expression})"):
                return
            await asyncio.sleep(_STEP)
        text = await self.value("document.body.innerText")
        raise PageFailed(f"never true: {expression}\n{self.problems}\n{text[:2000]}")

    async def press(self, key: str) -> None:
        """Press a key."""
        code = KEYS.get(key, ord(key[0].upper()))
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        await self.call(
            "Input.dispatchKeyEvent", type="keyDown", key=key, code=key, windowsVirtualKeyCode=code, text=text
        )
        await self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, windowsVirtualKeyCode=code)

    async def click(self, selector: str) -> None:
        """Click into the middle of an element."""
        box = await self.value(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{ block: 'nearest' }});"
            " const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            await self.call(
                "Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", buttons=1, clickCount=1
            )

    async def screenshot(self) -> bytes:
        """A picture of it, as PNG."""
        return base64.b64decode((await self.call("Page.captureScreenshot", format="png"))["data"])

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"])[:600])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append(json.dumps(params["args"])[:600])
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")


def chromium() -> str | None:
    """Where the browser is; None if it is not here."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for path in map(shutil.which, names) if path is not None), None)


@contextlib.asynccontextmanager
async def browsing(folder: Path) -> AsyncIterator[Page]:
    """A tab of a browser of its own, for as long as the context lasts.

    Args:
        folder: Where its profile and its log go.
    """
    command = [
        chromium() or "chromium",
        "--headless=new",
        "--no-sandbox",  # tests may run as root, in a container
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--no-first-run",
        "--no-proxy-server",
        "--hide-scrollbars",
        f"--user-data-dir={folder / 'profile'}",
        "--remote-debugging-port=0",
        "about:blank",
    ]
    with serving(command, log=folder / "chromium.log", ready=_READY) as server:
        async with connect(server.ready[1], proxy=None, max_size=None, ping_interval=None) as socket:
            page = Page(socket)
            async with asyncio.TaskGroup() as tasks:
                reader = tasks.create_task(page.read())
                await page.open()
                yield page
                reader.cancel()
