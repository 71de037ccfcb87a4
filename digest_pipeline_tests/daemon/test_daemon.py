"""The daemon alone, by a moved clock: ticks over clock changes, an outage, and everything that comes back by itself."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from digest_pipeline.gateways.base import Idempotency
from digest_pipeline.lab.sandbox.faults import Fault, Rule
from digest_pipeline_tests.daemon.story import keys_of, story_from
from digest_pipeline_tests.harness.ledgers import run_sql
from digest_pipeline_tests.harness.webhook import receiver

BERLIN = ZoneInfo("Europe/Berlin")
NEW_YORK = ZoneInfo("America/New_York")
CUSTOMERS = 5

pytestmark = [pytest.mark.daemon, pytest.mark.slow, pytest.mark.postgresql]


@pytest.fixture
def hook(monkeypatch):
    """A receiver of notifications, and operators with a mailbox."""
    with receiver() as opened:
        monkeypatch.setenv("NOTIFY_HOOK", opened.url)
        monkeypatch.setenv("NOTIFY_MAIL", "ops@example.test")
        yield opened


NOTIFY = {"webhook": {"env": "NOTIFY_HOOK"}, "email": {"env": "NOTIFY_MAIL"}}


def test_each_week_goes_out_once_over_a_spring_change_and_a_two_week_outage(
    tmp_path, sandbox, monkeypatch, hook
):
    weeks = ("2026-W12", "2026-W13", "2026-W14", "2026-W15")
    days = ("2026-03-18", "2026-03-25", "2026-04-01", "2026-04-08")
    monday = datetime(2026, 3, 23, 6, 50, tzinfo=BERLIN)
    with story_from(
        monday,
        tmp_path,
        sandbox,
        monkeypatch,
        days,
        time_zone="Europe/Berlin",
        first_period="2026-W01",
        delivery_window={"closes_after_hours": 72},
        notify=NOTIFY,
    ) as story:
        story.clock.set(datetime(2026, 3, 23, 6, 59, 57, tzinfo=BERLIN))
        story.finished("2026-W12")
        assert story.accepted() == keys_of(story.rim, "2026-W12", customers=CUSTOMERS)

        # The clocks went forward on Sunday: this tick is 167 hours after the last one.
        story.clock.set(datetime(2026, 3, 30, 6, 59, 57, tzinfo=BERLIN))
        story.finished("2026-W13")
        assert story.accepted() == keys_of(story.rim, "2026-W12", "2026-W13", customers=CUSTOMERS)

        # Two Mondays without a daemon. Dagster makes up for the newest tick only.
        story.site.stop("daemon")
        story.clock.set(datetime(2026, 4, 13, 9, 0, tzinfo=BERLIN))
        story.site.start("daemon")
        (missed,), (late,) = story.finished("2026-W14"), story.finished("2026-W15")
        assert late.tags["dagster/schedule_name"] == "tiny_digest_weekly_schedule"
        assert missed.tags["dagster/sensor_name"] == "tiny_digest_missed_periods"
        # W14's window closed on Thursday: frozen and shown, and nothing of it is sent without a person.
        assert story.rim.summary("2026-W14").held == {"window_closed": CUSTOMERS}
        sent = ("2026-W12", "2026-W13", "2026-W15")
        assert story.accepted() == keys_of(story.rim, *sent, customers=CUSTOMERS)
        story.wait_for("the news of W14", lambda: len(hook.told) > 1)

        story.ticked("tiny_digest_missed_periods", "tiny_digest_follow_ups", "notify_incidents")
        assert [len(story.runs(week)) for week in weeks] == [1, 1, 1, 1]
        # Nobody had run W14, and now it is below its objective: two things to know, each said once.
        told = [(one["kind"], one["subject"], one["period"]) for one in hook.told]
        assert told == [
            ("period_missed", "no_content", "2026-W14"),
            ("check_failed", "coverage_meets_objective", "2026-W14"),
        ]
        assert len(story.mailed()) == 2


def test_what_is_left_after_a_run_is_done_when_its_time_has_come_and_people_are_told_once(
    tmp_path, sandbox, monkeypatch, hook
):
    days = ("2026-10-21", "2026-10-28", "2026-11-04")
    sandbox.change(idempotency=Idempotency.NONE)
    asked = {"idempotency": "none", "visibility_delay": "1h"}
    with story_from(
        datetime(2026, 10, 19, 12, 0, tzinfo=NEW_YORK),
        tmp_path,
        sandbox,
        monkeypatch,
        days,
        time_zone="America/New_York",
        first_period="2026-W01",
        delivery_window={"closes_after_hours": 72},
        cleanup={"delay_hours": None},
        retry={"base_seconds": 7200, "cap_seconds": 7200, "max_attempts": 5},
        gateway={"settings": asked},
        notify=NOTIFY,
    ) as story:
        rim = story.rim
        retried, doubtful = rim.key_of(1, "2026-W43"), rim.key_of(2, "2026-W43")
        sandbox.control.script(
            Rule(Fault.UNAVAILABLE_503, keys=[retried]), Rule(Fault.RESET_AFTER_ACCEPT, keys=[doubtful])
        )
        story.clock.set(datetime(2026, 10, 26, 6, 59, 57, tzinfo=NEW_YORK))
        story.finished("2026-W43")
        assert rim.states("2026-W43") == {"sent": CUSTOMERS - 2, "retry": 1, "unknown": 1}
        story.ticked("tiny_digest_follow_ups")
        assert len(story.runs("2026-W43")) == 1

        # Both have come due: the retry is sent, and the provider knows the one whose answer was lost.
        story.clock.set(datetime(2026, 10, 26, 12, 0, tzinfo=NEW_YORK))
        _, second = story.finished("2026-W43", 2)
        assert second.tags["dagster/sensor_name"] == "tiny_digest_follow_ups"
        story.wait_for("everybody's digest", lambda: rim.states("2026-W43") == {"sent": CUSTOMERS})
        story.ticked("tiny_digest_follow_ups", "notify_incidents")
        assert story.accepted() == keys_of(rim, "2026-W43", customers=CUSTOMERS)
        assert hook.told == []

        # The window is over: what was sent is cleaned.
        story.clock.set(datetime(2026, 10, 29, 1, 0, tzinfo=NEW_YORK))
        story.wait_for("the cleanup", lambda: rim.states("2026-W43") == {"cleaned": CUSTOMERS})
        assert {run.tags.get("dagster/sensor_name") for run in story.finished("2026-W43", 3)[2:]} == {
            "tiny_digest_cleanup"
        }

        # The clocks go back on Sunday. On Monday the customer database cannot be read, and is mended at eight.
        run_sql(rim.folder, "ALTER TABLE customers RENAME COLUMN opted_in TO agreed")
        story.clock.set(datetime(2026, 11, 2, 6, 59, 57, tzinfo=NEW_YORK))
        story.finished("2026-W44")
        story.wait_for("the news of the failure", lambda: hook.told and story.mailed())
        story.ticked("notify_failed_runs", "notify_incidents")
        assert [(one["kind"], one["period"]) for one in hook.told] == [("run_failed", "2026-W44")]
        assert len(story.mailed()) == 1
        run_sql(rim.folder, "ALTER TABLE customers RENAME COLUMN agreed TO opted_in")

        # Started again as a missed week, it meets an account that is refused until noon.
        sandbox.control.script(Rule(Fault.UNAUTHORIZED_401, next=1_000))
        story.clock.set(datetime(2026, 11, 2, 8, 0, tzinfo=NEW_YORK))
        _, again = story.finished("2026-W44", 2)
        assert again.tags["dagster/sensor_name"] == "tiny_digest_missed_periods"
        story.wait_for("the news of the halt", lambda: len(hook.told) > 1)
        story.ticked("notify_failed_runs", "notify_incidents")
        assert [one["kind"] for one in hook.told] == ["run_failed", "sending_halted"]
        assert len(story.mailed()) == 1  # the account that would carry it is the one that is refused
        sandbox.control.clear_faults()
        story.clock.set(datetime(2026, 11, 2, 12, 0, tzinfo=NEW_YORK))
        story.wait_for("everybody's digest", lambda: rim.states("2026-W44") == {"sent": CUSTOMERS})
        both = keys_of(rim, "2026-W43", "2026-W44", customers=CUSTOMERS)
        assert story.accepted() == both

        # Somebody changes a sealed manifest; the next run of it says so, and the one after it adds nothing.
        rim.sql("UPDATE manifest SET checksum = 'another' WHERE period = '2026-W44'")
        for _ in range(2):
            assert story.run_by_hand("2026-W44") == 1
        story.wait_for("the news of the check", lambda: len(hook.told) > 2)
        story.ticked("notify_failed_runs", "notify_incidents")
        assert [(one["kind"], one["subject"]) for one in hook.told[2:]] == [
            ("check_failed", "manifest_is_frozen")
        ]
        assert story.accepted() == both
