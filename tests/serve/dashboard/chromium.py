"""Chromium without a window, driven over a pipe by the DevTools protocol; no library and no download."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars", "--remote-debugging-pipe")
PATIENCE_S = 60.0  # for an answer; only a test that fails waits so long


class Browser:
    """One page in one browser. Methods wait for their answer."""

    def __init__(self, folder: Path) -> None:
        assert PROGRAM is not None
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        command = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'  # the browser reads from 3 and writes to 4
        words = ["bash", "-c", command, PROGRAM, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
        self._process = subprocess.Popen(
            words, pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._number = 0
        self._rest = b""
        self._session: str | None = None
        self.password: str | None = None  # what a person would type when asked
        self.num_asked = 0
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Fetch.enable", handleAuthRequests=True)

    def call(self, method: str, **params: Any) -> Any:
        number = self._send(method, params)
        while True:
            message = self._read()
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            self._hear(message)

    def _send(self, method: str, params: dict[str, Any]) -> int:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        return self._number

    def _read(self, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
        end_s = time.monotonic() + timeout_s
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(0.0, end_s - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser says nothing")
            data = os.read(self._from, 1 << 16)
            assert data, "the browser has ended"
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _hear(self, message: dict[str, Any]) -> None:
        """What the browser says by itself: it asks for a password, or the page complains."""
        params = message.get("params", {})
        match message.get("method"):
            case "Fetch.requestPaused":
                self._send("Fetch.continueRequest", {"requestId": params["requestId"]})
            case "Fetch.authRequired":
                self.num_asked += 1
                known = self.password is not None and self.num_asked < 5
                typed = {"response": "ProvideCredentials", "username": "", "password": self.password}
                answer = typed if known else {"response": "CancelAuth"}
                self._send("Fetch.continueWithAuth", {"requestId": params["requestId"], "authChallengeResponse": answer})
            case "Runtime.exceptionThrown":
                self.complaints.append(params["exceptionDetails"].get("exception", {}).get("description", "an exception"))
            case "Log.entryAdded" if params["entry"]["level"] == "error":
                self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.complaints.append(str(params["args"]))
            case _:
                pass

    def open(self, url: str, width: int = 1280, height: int = 800, dark: bool = False, scale: float = 1.0) -> None:
        mobile = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=mobile)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=url)

    def value(self, expression: str) -> Any:
        """Of JavaScript, in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, expression: str, timeout_s: float = PATIENCE_S) -> Any:
        """Until JavaScript in the page says something true."""
        end_s = time.monotonic() + timeout_s
        while not (found := self.value(expression)):
            assert time.monotonic() < end_s, f"never came true: {expression}"
            self.listen(0.1)
        return found

    def listen(self, seconds: float) -> None:
        """Let the page go on, and hear what it says."""
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            try:
                self._hear(self._read(left_s))
            except TimeoutError:
                return

    def screenshot(self, path: Path, whole: bool = False) -> None:
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(20)
        os.close(self._to)
        os.close(self._from)


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    opened = Browser(folder)
    try:
        yield opened
    finally:
        opened.close()


