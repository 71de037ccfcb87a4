"""The house's mail service as its handbook describes it, on a thread of its own. Shares no code with the gateway."""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter, defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from digest_pipeline.gateways import registry
from digest_pipeline.gateways.base import Gateway
from digest_pipeline.lab.gateway_contract import Situation

TOKEN = "house-Token/7+x="
QUIET = {
    Situation.DROPS_AFTER_ACCEPTING,
    Situation.DROPS_BEFORE_ACCEPTING,
    Situation.IS_SILENT_AFTER_ACCEPTING,
}
TAKES_NOTHING = {
    Situation.REFUSES_THE_RECIPIENT: (422, "no_such_mailbox"),
    Situation.REFUSES_THE_ACCOUNT: (401, "unknown_token"),
    Situation.THROTTLES: (429, "too_fast"),
    Situation.DROPS_BEFORE_ACCEPTING: (0, ""),
}


class House:
    """A stand: one service, and what it has taken. A context manager."""

    secrets = (TOKEN,)

    def __init__(self) -> None:
        self.situation = Situation.ACCEPTS
        self.arrived: Counter[str] = Counter()
        self.taken: dict[str, list[str]] = defaultdict(list)
        self.addresses: dict[str, list[str]] = {}
        self.over = threading.Event()

    def __enter__(self) -> House:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"house": self}))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def arrange(self, situation: Situation) -> None:
        self.situation = situation

    def gateway(self) -> Gateway:
        port = self._server.server_port
        if self.situation is Situation.IS_UNREACHABLE:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
        settings = {"url": f"http://127.0.0.1:{port}", "token": TOKEN, "time_out": "700ms"}
        return registry.create("house_mail", settings)

    def accepted(self, operation_key: str) -> int:
        return len(self.taken[operation_key])

    def arrivals(self, operation_key: str) -> int:
        return self.arrived[operation_key]

    def recipients(self, operation_key: str) -> list[str]:
        return self.addresses[operation_key]


class _Handler(BaseHTTPRequestHandler):
    house: House

    def do_POST(self) -> None:
        house, situation = self.house, self.house.situation
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key, house.situation = message["key"], Situation.ACCEPTS
        house.arrived[key] += 1
        house.addresses[key] = [message["to"]["address"]]
        if situation not in TAKES_NOTHING:
            house.taken[key].append(f"house-{sum(house.arrived.values())}")
        if situation in QUIET:
            if situation is Situation.IS_SILENT_AFTER_ACCEPTING:
                house.over.wait(30)
            self.close_connection = True
            return
        status, code = TAKES_NOTHING.get(situation, (202, ""))
        about = f"{message['to']['address']} with {self.headers['Authorization']}"
        body = {"code": code, "message": about} if code else {"id": house.taken[key][-1]}
        if situation is Situation.FAILS_AFTER_ACCEPTING:
            status, body = 500, {"code": "broken", "message": about}
        text = json.dumps(body)
        self._say(status, text[:-4] if situation is Situation.IS_UNREADABLE_AFTER_ACCEPTING else text)

    def do_GET(self) -> None:
        key = parse_qs(urlsplit(self.path).query)["key"][0]
        self._say(200, json.dumps({"ids": self.house.taken[key]}))

    def _say(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass
