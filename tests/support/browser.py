"""A headless Chromium, driven over the DevTools protocol with nothing but the standard library."""

import base64
import json
import os
import re
import shutil
import socket
import struct
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
]
_PATIENCE = 60.0  # seconds for an answer


def find_browser() -> str | None:
    """The path of a browser, if there is one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class WebSocket:
    """A client of as much of RFC 6455 as the DevTools protocol needs: text frames, sent masked."""

    def __init__(self, url: str):
        parts = urlsplit(url)
        assert parts.hostname
        assert parts.port
        self._socket = socket.create_connection((parts.hostname, parts.port), timeout=_PATIENCE)
        self._file = self._socket.makefile("rb")
        key = base64.b64encode(os.urandom(16)).decode()
        lines = (f"GET {parts.path} HTTP/1.1", f"Host: {parts.netloc}", "Upgrade: websocket", "Connection: Upgrade")
        lines += (f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", "", "")
        self._socket.sendall("\r\n".join(lines).encode())
        assert b"101" in self._file.readline()
        while self._file.readline().strip():
            pass

    def send(self, text: str) -> None:
        data, mask = text.encode(), os.urandom(4)
        length = bytes([0x80 | len(data)]) if len(data) < 126 else struct.pack("!BQ", 0xFF, len(data))
        masked = bytes(byte ^ mask[i % 4] for i, byte in enumerate(data))
        self._socket.sendall(b"\x81" + length + mask + masked)

    def receive(self) -> str:
        parts, last = [], False
        while not last:
            head, length = self._file.read(2)
            last = bool(head & 0x80)
            if length == 126:
                (length,) = struct.unpack("!H", self._file.read(2))
            elif length == 127:
                (length,) = struct.unpack("!Q", self._file.read(8))
            content = self._file.read(length)
            if head & 0x0F in (0, 1):
                parts.append(content)
            else:  # a ping, to which the browser does not need an answer
                last = False
        return b"".join(parts).decode()

    def close(self) -> None:
        self._file.close()
        self._socket.close()


class Tab:
    """A page of the browser."""

    def __init__(self, connection: WebSocket, session: str):
        self._connection, self._session, self._count = connection, session, 0
        self.errors: list[str] = []  # of scripts, and messages of the console that are errors or warnings

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters, "sessionId": self._session}
        self._connection.send(json.dumps(message))
        while (answer := self._next()).get("id") != self._count:
            pass
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def _next(self) -> dict[str, Any]:
        message = json.loads(self._connection.receive())
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(str(parameters["exceptionDetails"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.errors.append(parameters["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.errors.append(str(parameters["args"]))
        return message

    def open(self, page: Path, width: int, height: int = 900, script: bool = True) -> None:
        """Load a page in a window of this size, with its scripts or without; evaluations work in both cases."""
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        phone = {"deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, **phone)
        self.call("Page.navigate", url=page.resolve().as_uri())
        while self._next().get("method") != "Page.loadEventFired":
            pass

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript, as JSON can hold it."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """A key as a keyboard sends it."""
        codes = {"Enter": (13, "\r"), "Tab": (9, ""), "ArrowRight": (39, ""), "End": (35, "")}
        code, text = codes[key]
        named = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **named)
        self.call("Input.dispatchKeyEvent", type="keyUp", **named)

    def hover(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, path: Path, height: int | None = None) -> None:
        """A PNG file of the whole page, or of its upper part."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": height or size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def browser(path: str) -> Generator[Tab, None, None]:
    """A tab of a browser that is started for it."""
    with TemporaryDirectory() as folder, open(Path(folder) / "log", "w+b") as log:
        command = [path, *_FLAGS, f"--user-data-dir={folder}/profile", "about:blank"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=log)
        try:
            assert process.stderr is not None
            said = b""
            while not (match := re.search(rb"DevTools listening on (ws://\S+)", said)):
                line = process.stderr.readline()
                assert line, f"the browser did not start: {said.decode(errors='replace')}"
                said += line
            connection = WebSocket(match[1].decode())
            yield _attach(connection)
            connection.close()
        finally:
            process.terminate()
            process.wait(_PATIENCE)
            if process.stderr is not None:
                process.stderr.close()


def _attach(connection: WebSocket) -> Tab:
    """The browser's tab."""

    def ask(number: int, method: str, **parameters: Any) -> dict[str, Any]:
        connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while (answer := json.loads(connection.receive())).get("id") != number:
            pass
        return answer["result"]

    tabs = ask(1, "Target.getTargets")["targetInfos"]
    target = next(tab["targetId"] for tab in tabs if tab["type"] == "page")
    return Tab(connection, ask(2, "Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
