"""The gateway to a folder: what it writes is what would go out, once."""

import asyncio
from email import message_from_bytes, policy

import pytest

from digest_pipeline.content.mime import to_mime
from digest_pipeline.errors import SpecError
from digest_pipeline.gateways import registry
from digest_pipeline.gateways.envelopes import keyed
from digest_pipeline.outcomes import Absent, Accepted, AccountRefused, Ambiguous, Found, LookUpFailed
from digest_pipeline_tests.harness.sandbox import envelope, envelopes


def run(folder, act):
    async def entered():
        async with registry.create("maildir", {"folder": str(folder)}) as gateway:
            return await act(gateway)

    return asyncio.run(entered())


def send(folder, *sent):
    async def each(gateway):
        return [await gateway.send(one) for one in sent]

    return run(folder, each)


def files(folder):
    return {part: sorted(one.name for one in (folder / part).iterdir()) for part in ("tmp", "new")}


def test_each_message_is_one_file_in_its_wire_form_and_nothing_is_left_in_between(tmp_path):
    outcomes = send(tmp_path, *envelopes(3))
    assert files(tmp_path) == {"tmp": [], "new": sorted(f"{one.message_id}.eml" for one in outcomes)}
    first = envelopes(3)[0]
    written = (tmp_path / "new" / f"{outcomes[0].message_id}.eml").read_bytes()
    assert written == to_mime(keyed(first), first.recipient)
    found = message_from_bytes(written, policy=policy.default)
    assert [one.addr_spec for one in found["To"].addresses] == [first.recipient]
    assert found["X-Operation-Key"] == first.operation_key


def test_a_repeat_finds_the_file_and_writes_nothing_new(tmp_path):
    (first,), (second,) = send(tmp_path, envelope()), send(tmp_path, envelope())
    assert second == Accepted(first.message_id, replayed=True)
    assert len(files(tmp_path)["new"]) == 1


def test_the_same_message_at_once_from_many_lanes_is_written_once(tmp_path):
    outcomes = run(tmp_path, lambda gateway: asyncio.gather(*(gateway.send(envelope()) for _ in range(20))))
    assert [one.replayed for one in outcomes].count(False) == 1
    assert {one.message_id for one in outcomes} == {outcomes[0].message_id}
    assert files(tmp_path) == {"tmp": [], "new": [f"{outcomes[0].message_id}.eml"]}


def test_other_bytes_under_the_same_key_are_an_integrity_alarm_and_the_first_ones_stay(tmp_path):
    """CLS-11."""
    (first,) = send(tmp_path, envelope())
    before = (tmp_path / "new" / f"{first.message_id}.eml").read_bytes()
    (second,) = send(tmp_path, envelope(text="changed"))
    assert isinstance(second, Ambiguous)
    assert second.integrity
    assert (tmp_path / "new" / f"{first.message_id}.eml").read_bytes() == before


def test_a_look_up_finds_what_was_written_and_says_nothing_without_the_folder(tmp_path):
    (sent,) = send(tmp_path, envelope())
    assert run(tmp_path, lambda g: g.look_up(envelope().operation_key)) == Found(sent.message_id)
    assert run(tmp_path, lambda g: g.look_up("d:p:another")) == Absent()

    async def without(gateway):
        (tmp_path / "new").rename(tmp_path / "elsewhere")
        return await gateway.look_up(envelope().operation_key)

    assert isinstance(run(tmp_path, without), LookUpFailed)


def test_a_key_never_becomes_a_path(tmp_path):
    folder = tmp_path / "mail"
    customers = ("../../outside", "/root", "a/b", "x" * 200)
    outcomes = send(folder, *(envelope(one, recipient="reader@example.test") for one in customers))
    assert {type(one) for one in outcomes} == {Accepted}
    assert len(files(folder)["new"]) == 4
    assert sorted(one.name for one in tmp_path.iterdir()) == ["mail"]


def test_a_folder_that_cannot_be_written_to_halts_and_leaves_no_half_file(tmp_path):
    async def filled(gateway):
        (tmp_path / "tmp").rmdir()
        return await gateway.send(envelope())

    outcome = run(tmp_path, filled)
    assert outcome == AccountRefused("folder: FileNotFoundError")
    assert list((tmp_path / "new").iterdir()) == []


def test_a_folder_that_cannot_be_made_is_refused_by_name(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match=r"folder: .* cannot be made"):
        registry.create("maildir", {"folder": str(tmp_path / "file" / "mail")})


def test_what_a_killed_process_left_in_between_is_in_nobodys_way(tmp_path):
    (sent,) = send(tmp_path, envelope("1"))
    half = tmp_path / "tmp" / f"{sent.message_id}.0badcafe"
    half.write_bytes(b"From: half")
    (tmp_path / "new" / f"{sent.message_id}.eml").unlink()
    (again,) = send(tmp_path, envelope("1"))
    assert again == Accepted(sent.message_id)
    written = (tmp_path / "new" / f"{sent.message_id}.eml").read_bytes()
    assert written == to_mime(keyed(envelope("1")), envelope("1").recipient)
