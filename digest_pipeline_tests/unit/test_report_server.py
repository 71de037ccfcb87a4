from __future__ import annotations

import http.client
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from digest_pipeline.cli.report_server import serve_reports

PAGE, LIST = "d-2025-W10.html", "d-2025-W10.csv"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "reports"
    found.mkdir()
    (found / PAGE).write_text("<p>the report</p>", encoding="utf-8")
    (found / LIST).write_text("operation_key\n", encoding="utf-8")
    (found / "notes.txt").write_text("secret", encoding="utf-8")
    (found / ".d-2025-W10.html.x.part").write_text("half", encoding="utf-8")
    (found / ".hidden.html").write_text("secret", encoding="utf-8")
    (tmp_path / "outside.html").write_text("secret", encoding="utf-8")
    (found / "linked.html").symlink_to(tmp_path / "outside.html")
    (found / "folder.html").mkdir()
    os.mkfifo(found / "pipe.html")
    return found


@pytest.fixture
def url(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.delenv("DIGEST_REPORTS_URL", raising=False)
    with serve_reports(folder, 0):
        yield os.environ["DIGEST_REPORTS_URL"]


def asked(url: str, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Ask without any client that tidies the path up first."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def test_a_page_is_shown_and_may_fetch_run_and_be_framed_by_nothing(url: str) -> None:
    status, headers, body = asked(url, f"/{PAGE}")
    assert (status, body) == (200, b"<p>the report</p>")
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    policy = headers["Content-Security-Policy"]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
    assert (headers["X-Content-Type-Options"], headers["Referrer-Policy"]) == ("nosniff", "no-referrer")


def test_a_list_is_a_file_to_keep(url: str) -> None:
    status, headers, body = asked(url, f"/{LIST}")
    assert (status, body) == (200, b"operation_key\n")
    assert headers["Content-Type"] == "text/csv; charset=utf-8"
    assert headers["Content-Disposition"] == f'attachment; filename="{LIST}"'


def test_head_tells_the_length_without_the_body(url: str) -> None:
    status, headers, body = asked(url, f"/{PAGE}", "HEAD")
    assert (status, headers["Content-Length"], body) == (200, "17", b"")


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/notes.txt",
        "/.hidden.html",
        "/.d-2025-W10.html.x.part",
        "/linked.html",
        "/folder.html",
        "/pipe.html",
        "/missing.html",
        "/../outside.html",
        "/%2e%2e/outside.html",
        "/..%2foutside.html",
        "/reports/../../outside.html",
        "//outside.html",
        "/d-2025-W10.html%00.csv",
        "/d-2025-W10.html/",
        "/d-2025-W10.html%0a",
        "/folder.html/x.html",
    ],
)
def test_nothing_else_is_to_be_had(url: str, path: str) -> None:
    status, headers, body = asked(url, path)
    assert (status, body) == (404, b"")
    assert "Content-Security-Policy" in headers


@pytest.mark.parametrize("target", ["http://[", "http://[/d-2025-W10.html", "//[::1", "*"])
def test_a_target_that_is_no_path_is_answered_and_nothing_is_printed(
    url: str, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    host, _, port = url.removeprefix("http://").partition(":")
    capsys.readouterr()
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(f"GET {target} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
        with connection.makefile("rb") as answer:
            assert answer.read().split(b"\r\n")[0] == b"HTTP/1.0 404 Not Found"
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_it_only_reads(url: str, folder: Path, method: str) -> None:
    assert asked(url, f"/{PAGE}", method)[0] == 501
    assert (folder / PAGE).read_text("utf-8") == "<p>the report</p>"


def test_a_page_of_another_site_cannot_read_through_a_name_of_its_own(url: str) -> None:
    """DNS rebinding: the browser believes that it still talks to the other site."""
    assert asked(url, f"/{PAGE}", Host="evil.test:3001")[0] == 421
    assert asked(url, f"/{PAGE}", Host="localhost:3001")[0] == 200


def test_it_listens_to_this_machine_alone_and_ends_with_its_block(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DIGEST_REPORTS_URL", raising=False)
    with serve_reports(folder, 0):
        host, _, port = os.environ["DIGEST_REPORTS_URL"].removeprefix("http://").partition(":")
        assert host == "127.0.0.1"
    assert "DIGEST_REPORTS_URL" not in os.environ
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=5)


def test_a_port_that_is_taken_ends_nothing_and_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DIGEST_REPORTS_URL", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with serve_reports(folder, port):
            assert "DIGEST_REPORTS_URL" not in os.environ
    assert f"port {port} is taken" in capsys.readouterr().err


def test_somebody_elses_server_is_left_to_serve(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DIGEST_REPORTS_URL", "https://host.test/reports")
    with serve_reports(folder, 0):
        assert os.environ["DIGEST_REPORTS_URL"] == "https://host.test/reports"
    assert os.environ["DIGEST_REPORTS_URL"] == "https://host.test/reports"
    assert capsys.readouterr().err == ""
