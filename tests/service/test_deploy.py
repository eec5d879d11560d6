"""The files of deploy/ as they are: nginx in front of a real server, the unit as systemd reads it, the image."""

from __future__ import annotations

import json
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from server_parts import Server
from service_parts import folded

from remem import Client
from remem.service.errors import NotReady

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


class Proxy:
    """nginx with our configuration, but for its ports, its certificate and how long it waits for what never comes."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.certificate, key = folder / "proxy.pem", folder / "proxy.key"
        subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
        files = ["-keyout", str(key), "-out", str(self.certificate)]
        make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        subprocess.run([*make, "-days", "2", *subject, *files], check=True, capture_output=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        places = {
            "127.0.0.1:8080": f"127.0.0.1:{server.port}",
            "listen 443": f"listen 127.0.0.1:{self.port}",
            "/etc/ssl/memory.example.org.pem": str(self.certificate),
            "/etc/ssl/memory.example.org.key": str(key),
            "client_header_timeout 5s": "client_header_timeout 1s",
            "client_body_timeout 5s": "client_body_timeout 1s",
        }
        ours = (DEPLOY / "nginx.conf").read_text()
        for before, after in places.items():
            assert before in ours
            ours = ours.replace(before, after)
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        scratch = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
        around = f"daemon off; master_process off; pid {folder}/pid; error_log {folder}/errors; events {{}}"
        (folder / "nginx.conf").write_text(f"{around} http {{ access_log off; {scratch}\n{ours} }}\n")
        self._process = subprocess.Popen(["nginx", "-c", str(folder / "nginx.conf"), "-e", f"{folder}/errors"])
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        raise AssertionError((folder / "errors").read_text())

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.certificate)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(10)


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Proxy, Server]]:
    """A server, and nginx in front of it."""
    for program in ("nginx", "openssl"):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program} on this machine")
    server = Server(tmp_path_factory.mktemp("behind"), behind_proxy=True)
    proxy = Proxy(tmp_path_factory.mktemp("nginx"), server)
    yield proxy, server
    proxy.stop()
    server.stop()


def test_the_verbs_work_through_the_proxy(behind: tuple[Proxy, Server]) -> None:
    proxy, server = behind
    with Client(proxy.url, token=server.token, verify=proxy.trust) as client:
        stream = client.stream("through")
        stream.append([f"event {number}" for number in range(7)])
        assert stream.query("?").answer == folded([f"event {number}" for number in range(7)])
        archive = client.export("through")
        client.import_archive("again", archive)
        assert client.inspect("again").next_seq == 7
        assert client.delete("through").existed


def test_what_is_for_operators_stays_inside(behind: tuple[Proxy, Server]) -> None:
    proxy, server = behind
    headers = {"Authorization": f"Bearer {server.token}"}
    with httpx.Client(base_url=proxy.url, verify=proxy.trust, headers=headers) as client:
        for path in ("/metrics", "/readyz", "/livez", "/openapi.json", "/", "/v1/../metrics", "/v1/%2e%2e/metrics"):
            assert client.get(path).status_code == 404, path
        for verb in ("verify", "backup", "drain"):
            assert client.post(f"/v1/admin/{verb}").status_code == 404
        assert client.post("/v1/x/../admin/drain").status_code == 404
        assert client.get("/v1/streams").status_code == 200
    assert httpx.get(f"{proxy.url}/v1/streams", verify=proxy.trust).status_code == 401


def test_large_bodies_are_refused_by_who_knows_the_limit(behind: tuple[Proxy, Server]) -> None:
    proxy, server = behind
    headers = {"Authorization": f"Bearer {server.token}", "Content-Type": "application/json"}
    with httpx.Client(base_url=proxy.url, verify=proxy.trust, headers=headers) as client:
        ours = client.post("/v1/streams/large/events", content=b" " * (2**20 + 1))
        assert (ours.status_code, ours.json()["code"]) == (413, "too_large")
        theirs = client.post("/v1/streams/large/events", content=b" " * (17 * 2**20))
        assert theirs.status_code == 413
        assert client.get("/v1/streams/large").status_code == 404


@pytest.mark.parametrize("sent", [b"POST /v1/streams/s/ev", b"POST /v1/query HTTP/1.1\r\nHost: x\r\n"
                                  b"Content-Length: 9\r\n\r\n{"], ids=["headers", "body"])  # fmt: skip
def test_who_sends_slowly_is_hung_up_on(behind: tuple[Proxy, Server], sent: bytes) -> None:
    proxy, _ = behind
    plain = socket.create_connection(("127.0.0.1", proxy.port), timeout=10)
    with proxy.trust.wrap_socket(plain, server_hostname="localhost") as connection:
        connection.sendall(sent)
        started = time.monotonic()
        while connection.recv(4096):
            pass
        assert time.monotonic() - started < 5


def test_a_refusal_by_the_proxy_itself_is_not_tried_again(behind: tuple[Proxy, Server]) -> None:
    proxy, server = behind
    with Client(proxy.url, token=server.token, verify=proxy.trust, patience=30.0) as client:
        started = time.monotonic()
        with pytest.raises(NotReady, match="413"):
            client.import_archive("large", bytes(17 * 2**20))
        with pytest.raises(NotReady, match="404"):
            client.verify()
        assert time.monotonic() - started < 10


def test_a_restart_behind_the_proxy_loses_and_doubles_nothing(behind: tuple[Proxy, Server]) -> None:
    proxy, server = behind
    events: list[Any] = [f"event {number}" for number in range(60)]
    errors: list[Exception] = []

    def write() -> None:
        try:
            with Client(proxy.url, token=server.token, verify=proxy.trust, patience=30.0) as client:
                stream = client.stream("restarted")
                for event in events:
                    stream.append([event])
                    time.sleep(0.02)
        except Exception as error:
            errors.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    time.sleep(0.3)
    server.kill()
    time.sleep(0.3)  # for a while nobody is there, which the proxy says with 502
    server.start()
    writer.join(60)
    assert not errors
    with server.client() as client:
        assert client.query("restarted", "?").answer == folded(events)
        assert client.inspect("restarted").next_seq == len(events)


def test_systemd_understands_every_line_of_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze on this machine")
    text = (DEPLOY / "remem.service").read_text()
    unit = tmp_path / "remem.service"
    unit.write_text(text.replace("/opt/remem/bin/remem", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    ours = [line for line in done.stderr.splitlines() if "remem.service" in line]
    assert (done.returncode, ours) == (0, []), done.stderr
    options = re.search(r"^ExecStart=\S+ serve \S+ (.*)$", text, flags=re.MULTILINE)
    assert options is not None
    _require_options(options[1].split())


def test_the_image_starts_what_there_is() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    entry, rest = (json.loads(re.findall(rf"^{name} (\[.*\])$", text, flags=re.M)[0]) for name in ("ENTRYPOINT", "CMD"))
    assert entry[:2] == ["remem", "serve"]
    _require_options([*entry[3:], *rest])
    users = re.findall(r"^USER (\S+)$", text, flags=re.M)
    assert users
    assert "root" not in users
    root = DEPLOY.parent
    for line in re.findall(r"^COPY (?!--from)(.*) \S+$", text, flags=re.M):
        assert all((root / name).exists() for name in line.split()), line


def _require_options(given: list[str]) -> None:
    """`remem serve` knows each of these options."""
    shown = subprocess.run([sys.executable, "-m", "remem", "serve", "--help"], capture_output=True, text=True).stdout
    wanted = [option for option in given if option.startswith("--")]
    assert wanted
    for option in wanted:
        assert re.search(rf"{option}\b", shown), option
