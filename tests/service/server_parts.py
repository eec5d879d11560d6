"""What the tests of the server share: a server that is started, killed and stopped, and raw requests to it."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from remem.client import Client
from remem.server.tokens import SCOPES, TokenFile


class Reply(NamedTuple):
    """A reply as it came."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Server:
    """One store and its tokens, with a server process that comes and goes."""

    def __init__(self, folder: Path, *, store: str = "", **settings: Any) -> None:
        self.folder, self.settings = folder, settings
        self.store, self.log_path = store or str(folder / "memories.db"), folder / "log"
        self.tokens = TokenFile(folder / "tokens.json")
        self.token = self.tokens.add("ours", SCOPES)
        self.scoped = {scope: self.tokens.add("theirs", [scope]) for scope in SCOPES}
        """Tokens of another tenant, each with one scope."""
        self.port = 0
        self.start()

    def start(self) -> None:
        """On the port it had before, if it had one."""
        child = Path(__file__).with_name("server_child.py")
        pairs = [f"{name}={json.dumps(value)}" for name, value in self.settings.items()]
        command = [sys.executable, str(child), str(self.store), str(self.port), str(self.tokens.path), *pairs]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log_path.read_text()
        self.port = int(line)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def client(self, **options: Any) -> Client:
        return Client(self.url, **({"token": self.token} | options))

    def memory_mb(self) -> float:
        """What the process takes of the machine's memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self, timeout: float = 30.0) -> int:
        self.process.terminate()
        return self.process.wait(timeout)

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 10.0,
    ) -> Reply:
        """One request on a connection of its own; bytes are sent as they are, all else as JSON."""
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Authorization": f"Bearer {self.token if token is None else token}"} if token != "" else {}
        if content is not None:
            sent["Content-Type"] = "application/json"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, content, sent | dict(headers or {}))
            reply = connection.getresponse()
            return Reply(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())
        finally:
            connection.close()

    def raw(self, data: bytes, *, timeout: float = 10.0) -> bytes:
        """Bytes as they are; what comes back until the server hangs up."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as connection:
            connection.sendall(data)
            parts = []
            try:
                while part := connection.recv(65536):
                    parts.append(part)
            except (ConnectionResetError, TimeoutError):
                pass
            return b"".join(parts)
