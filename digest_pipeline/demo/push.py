"""The demo's push: pipeline -> TLS -> subscriber -> sandbox provider, each in a process of its own.

The subscriber has a ledger of its own and fetches the content over TLS from the pipeline's side. One
authority, made for this demo, vouches for both servers; both ends check that.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import trustme

from digest_pipeline.demo.providers import Provider, Stage
from digest_pipeline.lab.sandbox.faults import HARSH_FAULTS
from digest_pipeline.lab.sandbox.process import SandboxProcess
from digest_pipeline.lab.sandbox.settings import SandboxSettings
from digest_pipeline.settings import DEMO_SPECS
from digest_pipeline.spec import EnvSetting, GatewayChoice

START_SECONDS = 60.0
HOST = "localhost"

_SPEC = """\
extends: {base}
gateway:
  kind: sandbox
  settings:
    url: {{ env: DIGEST_SANDBOX_URL }}
    api_key: {{ env: DIGEST_SANDBOX_API_KEY }}
# Its answer has to come while the pipeline still waits for the push.
sending: {{ timeout_seconds: 3, lease_seconds: 20 }}
"""


@dataclass(frozen=True, slots=True)
class Tls:
    """The files of one server's certificate, and of the authority that vouches for it."""

    ca_file: Path
    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Served:
    """One of our servers that runs, and where."""

    url: str
    process: subprocess.Popen[bytes]


@contextmanager
def https_push(stage: Stage) -> Iterator[Provider]:
    """Run the whole push design around the sandbox provider; judged by the sandbox's store."""
    home = stage.home
    tls = make_tls(home / "tls")
    token, secret = secrets.token_urlsafe(32), make_secret()
    sandbox = SandboxSettings(profile=stage.profile, seed=stage.seed)
    with ExitStack() as stack:
        process = stack.enter_context(SandboxProcess(home / "sandbox.db", sandbox))
        content = stack.enter_context(
            served(["content", "serve"], tls, home / "content.log", {"DIGEST_CONTENT_TOKEN": token})
        )
        variables = {
            "DIGEST_HOME": str(home / "subscriber"),
            "DIGEST_LEDGER_URL": "",
            "DIGEST_SUBSCRIBER_LEDGER_URL": f"sqlite:///{home / 'subscriber' / 'ledger.db'}",
            "DIGEST_SUBSCRIBER_SPECS": str(_spec_folder(home / "subscriber" / "specs")),
            "DIGEST_SUBSCRIBER_SECRET": secret,
            "DIGEST_SUBSCRIBER_CONTENT_URL": content.url,
            "DIGEST_SUBSCRIBER_CONTENT_CA_FILE": str(tls.ca_file),
            "DIGEST_CONTENT_TOKEN": token,
            "DIGEST_SANDBOX_URL": process.url,
            "DIGEST_SANDBOX_API_KEY": sandbox.api_key,
        }
        subscriber = stack.enter_context(
            served(["subscriber", "serve"], tls, home / "subscriber.log", variables)
        )
        yield Provider(
            choice_of(subscriber.url, tls.ca_file, "DIGEST_DEMO_PUSH_SECRET"),
            {"DIGEST_DEMO_PUSH_SECRET": secret},
            process.store,
            f"subscriber at {subscriber.url}, content at {content.url}, sandbox provider at {process.url}",
            tuple(str(one) for one in HARSH_FAULTS),
        )


def choice_of(url: str, ca_file: Path, secret_variable: str) -> GatewayChoice:
    """Return how a digest pushes to a subscriber on this machine."""
    return GatewayChoice(
        kind="https_push",
        settings={
            "url": url,
            "secret": EnvSetting(env=secret_variable),
            "ca_file": str(ca_file),
            "allow_private": HOST,
        },
    )


def make_secret() -> str:
    """Return a new Standard Webhooks secret."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode("ascii")


def make_tls(folder: Path) -> Tls:
    """Make an authority and a certificate for this machine, both of which only this folder knows."""
    folder.mkdir(parents=True, exist_ok=True)
    authority = trustme.CA()
    issued = authority.issue_cert(HOST, "127.0.0.1")
    tls = Tls(folder / "ca.pem", folder / "server.pem", folder / "server.key")
    authority.cert_pem.write_to_path(tls.ca_file)
    tls.key.touch(mode=0o600)
    issued.private_key_pem.write_to_path(tls.key)
    tls.certificate.unlink(missing_ok=True)
    for one in issued.cert_chain_pems:
        one.write_to_path(tls.certificate, append=True)
    return tls


@contextmanager
def served(arguments: Sequence[str], tls: Tls, log: Path, variables: Mapping[str, str]) -> Iterator[Served]:
    """Run one of our servers until the end of the block. It ends with this process, too."""
    log.parent.mkdir(parents=True, exist_ok=True)
    listening = ["--port", "0", "--cert", str(tls.certificate), "--key", str(tls.key), "--until-stdin-closes"]
    command = [sys.executable, "-c", "from digest_pipeline.cli.main import main; main()"]
    environment = {name: text for name, text in (os.environ | variables).items() if text}
    with log.open("wb") as said:
        process = subprocess.Popen(
            [*command, *arguments, *listening],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            env=environment,
        )
    try:
        port = _url(process, log).rpartition(":")[2]
        yield Served(f"https://{HOST}:{port}", process)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _url(process: subprocess.Popen[bytes], log: Path) -> str:
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], START_SECONDS)
    line = process.stdout.readline() if readable else b""
    if not line:
        raise RuntimeError(f"the server did not start: {log.read_text(errors='replace')[-2000:]}")
    return str(json.loads(line)["url"])


def _spec_folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for base in sorted(DEMO_SPECS.glob("*.yaml")):
        (folder / base.name).write_text(_SPEC.format(base=json.dumps(str(base))), encoding="utf-8")
    return folder
