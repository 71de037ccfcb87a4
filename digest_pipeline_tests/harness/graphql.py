"""A small client of Dagster's GraphQL: what the UI's buttons do, and what its pages show."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

ENDED = ("SUCCESS", "FAILURE", "CANCELED")
PATIENCE = 600.0
_LOOK_EVERY = 0.5

T = TypeVar("T")

_RUN = "fragment run on Run { runId status startTime endTime tags { key value } }"
_METADATA = """fragment entry on MetadataEntry { label __typename
  ... on IntMetadataEntry { intValue } ... on FloatMetadataEntry { floatValue }
  ... on TextMetadataEntry { text } ... on BoolMetadataEntry { boolValue }
  ... on JsonMetadataEntry { jsonString } ... on MarkdownMetadataEntry { mdStr } }"""
_VALUES = ("intValue", "floatValue", "text", "boolValue", "jsonString", "mdStr")


@dataclass(frozen=True)
class Run:
    """A run as Dagster's storage has it. Times are seconds; None before they have come."""

    id: str
    status: str
    started: float | None
    ended: float | None
    tags: dict[str, str]


class GraphQLError(Exception):
    """The server refused; the text is its answer."""


class GraphQL:
    """A client of one web server's code location."""

    def __init__(self, url: str, location: str) -> None:
        self._url, self._location = f"{url}/graphql", location
        # An empty handler: a proxy in the environment must not see requests for this host.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        """Return the data of an answer. Raises GraphQLError and OSError."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"})
        try:
            with self._opener.open(request, timeout=60) as response:
                answer = json.loads(response.read())
        except urllib.error.HTTPError as error:
            with error:
                raise GraphQLError(error.read().decode("utf-8", "replace")) from None
        if answer.get("errors"):
            raise GraphQLError(json.dumps(answer["errors"]))
        data: dict[str, Any] = answer["data"]
        return data

    def not_ready(self, daemon: bool) -> str:
        """Return what is missing before runs can be launched; empty when nothing is."""
        found = self.ask(
            "{ workspaceOrError { ... on Workspace { locationEntries { locationOrLoadError { __typename "
            "... on PythonError { message } } } } } "
            "instance { daemonHealth { allDaemonStatuses { daemonType required healthy } } } }"
        )
        entries = [entry["locationOrLoadError"] for entry in found["workspaceOrError"]["locationEntries"]]
        if not entries or any(entry is None for entry in entries):
            return "the code location is loading"
        if failed := [entry["message"] for entry in entries if entry["__typename"] == "PythonError"]:
            return str(failed[0])
        daemons = found["instance"]["daemonHealth"]["allDaemonStatuses"]
        unwell = [one["daemonType"] for one in daemons if one["required"] and not one["healthy"]]
        return f"not healthy: {', '.join(unwell)}" if daemon and unwell else ""

    def launch(
        self,
        job: str = "__ASSET_JOB",
        partition: str | None = None,
        *,
        assets: Sequence[Sequence[str]] = (),
        config: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> str:
        """Launch a run and return its id: of a job, or of ``assets``, as the UI's Materialize button does."""
        named = dict(tags or {}) | ({"dagster/partition": partition} if partition else {})
        selector: dict[str, Any] = self._repository() | {"jobName": job}
        if assets:
            selector["assetSelection"] = [{"path": list(path)} for path in assets]
        found = self.ask(
            "mutation($p: ExecutionParams!) { launchRun(executionParams: $p) { __typename "
            "... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }",
            p={
                "selector": selector,
                "runConfigData": dict(config or {}),
                "executionMetadata": {"tags": _pairs(named)},
            },
        )["launchRun"]
        return str(_expected(found, "LaunchRunSuccess")["run"]["runId"])

    def backfill(
        self,
        partitions: Sequence[str],
        assets: Sequence[Sequence[str]],
        *,
        config: Mapping[str, Any] | None = None,
    ) -> str:
        """Launch a backfill of assets and return its id."""
        params: dict[str, Any] = {
            "partitionNames": list(partitions),
            "assetSelection": [{"path": list(path)} for path in assets],
        }
        if config:
            params["runConfigData"] = dict(config)
        found = self.ask(
            "mutation($p: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $p) { __typename "
            "... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }",
            p=params,
        )["launchPartitionBackfill"]
        return str(_expected(found, "LaunchBackfillSuccess")["backfillId"])

    def re_execute(self, run_id: str, strategy: str) -> str:
        """Re-execute a run, FROM_FAILURE or ALL_STEPS, and return the new run's id."""
        found = self.ask(
            "mutation($p: ReexecutionParams!) { launchRunReexecution(reexecutionParams: $p) { __typename "
            "... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }",
            p={"parentRunId": run_id, "strategy": strategy},
        )["launchRunReexecution"]
        return str(_expected(found, "LaunchRunSuccess")["run"]["runId"])

    def terminate(self, run_id: str) -> None:
        """Ask a run to end, as the UI's Terminate button does."""
        found = self.ask(
            "mutation($id: String!) { terminateRun(runId: $id) { __typename "
            "... on TerminateRunFailure { message } ... on PythonError { message } } }",
            id=run_id,
        )["terminateRun"]
        _expected(found, "TerminateRunSuccess")

    def run(self, run_id: str) -> Run:
        """Return one run."""
        query = "query($id: ID!) { runOrError(runId: $id) { __typename ... on Run { ...run } } }" + _RUN
        return _run(_expected(self.ask(query, id=run_id)["runOrError"], "Run"))

    def runs(self, **tags: str) -> list[Run]:
        """Return the runs with these tags (``dagster__partition`` for dagster/partition), newest first."""
        named = {name.replace("__", "/"): value for name, value in tags.items()}
        found = self.ask(
            "query($f: RunsFilter!) { runsOrError(filter: $f) { __typename ... on Runs { results { ...run } } } }"
            + _RUN,
            f={"tags": _pairs(named)},
        )["runsOrError"]
        return [_run(one) for one in _expected(found, "Runs")["results"]]

    def process_of(self, run_id: str) -> int:
        """Return the id of the process that works on a run."""
        query = (
            "query($id: ID!) { logsForRun(runId: $id) { ... on EventConnection { "
            "events { ... on EngineEvent { message } } } } }"
        )
        events = self.ask(query, id=run_id)["logsForRun"]["events"]
        found = [
            re.search(r"Started process for run \(pid: (\d+)\)", one.get("message", "")) for one in events
        ]
        return next(int(one[1]) for one in found if one)

    def wait_for_run(self, run_id: str) -> str:
        """Return how a run ended."""
        return until(lambda: self.run(run_id), lambda run: run.status in ENDED, f"run {run_id} to end").status

    def wait_for_backfill(self, backfill_id: str) -> str:
        """Return how a backfill ended."""
        query = (
            "query($id: String!) { partitionBackfillOrError(backfillId: $id) { __typename "
            "... on PartitionBackfill { status } } }"
        )

        def status() -> str:
            found = self.ask(query, id=backfill_id)["partitionBackfillOrError"]
            return str(_expected(found, "PartitionBackfill")["status"])

        return until(status, lambda one: one.startswith(("COMPLETED", "FAILED", "CANCELED")), "the backfill")

    def shown(self, asset: Sequence[str], partition: str) -> dict[str, Any]:
        """Return the metadata of an asset's newest materialisation of a partition."""
        found = self.ask(
            "query($k: AssetKeyInput!, $p: [String!]) { assetOrError(assetKey: $k) { __typename "
            "... on Asset { assetMaterializations(partitions: $p, limit: 1) { metadataEntries { ...entry } } } } }"
            + _METADATA,
            k={"path": list(asset)},
            p=[partition],
        )["assetOrError"]
        newest = _expected(found, "Asset")["assetMaterializations"]
        if not newest:
            raise LookupError(f"{'/'.join(asset)} was never materialised for {partition}")
        return {one["label"]: _value(one) for one in newest[0]["metadataEntries"]}

    def check(self, asset: Sequence[str], name: str) -> dict[str, Any]:
        """Return the newest execution of a check: status, and its evaluation with description and metadata."""
        found = self.ask(
            "query($k: AssetKeyInput!, $n: String!) { assetCheckExecutions(assetKey: $k, checkName: $n, limit: 1) "
            "{ runId status evaluation { severity description metadataEntries { ...entry } } } }" + _METADATA,
            k={"path": list(asset)},
            n=name,
        )["assetCheckExecutions"]
        if not found:
            raise LookupError(f"{name} was never executed")
        newest: dict[str, Any] = found[0]
        return newest

    def _repository(self) -> dict[str, str]:
        return {"repositoryLocationName": self._location, "repositoryName": "__repository__"}


def until(look: Callable[[], T], holds: Callable[[T], bool], what: str, patience: float = PATIENCE) -> T:
    """Return what is seen once it holds. Raises TimeoutError with what was seen last."""
    deadline = time.monotonic() + patience
    while not holds(seen := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited in vain for {what}: {seen}")
        time.sleep(_LOOK_EVERY)
    return seen


def _expected(found: dict[str, Any], kind: str) -> dict[str, Any]:
    if found["__typename"] != kind:
        raise GraphQLError(json.dumps(found))
    return found


def _run(found: Mapping[str, Any]) -> Run:
    tags = {one["key"]: one["value"] for one in found["tags"]}
    return Run(found["runId"], found["status"], found["startTime"], found["endTime"], tags)


def _pairs(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in tags.items()]


def _value(entry: Mapping[str, Any]) -> Any:
    return next((entry[name] for name in _VALUES if name in entry), None)
