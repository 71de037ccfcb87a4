"""Invented people for real purchases: the names and addresses a mailing really meets.

A pure function of seed and customer number, by SHA-256 and not by ``random``: the same people on
every Python version. All domains are reserved for examples, so nothing here can reach anybody.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import NamedTuple

_FIRST = (
    "Ann", "Ben", "Carla", "David", "Elena", "Frank", "Grace", "Hugo", "Irene", "James", "Kate", "Liam",
    "Maria", "Noah", "Olivia", "Paul", "Quinn", "Rosa", "Sam", "Tara", "Umar", "Vera", "Will", "Yara",
)  # fmt: skip
_LAST = (
    "Adams", "Baker", "Clarke", "Diaz", "Evans", "Fischer", "Garcia", "Hill", "Ito", "Jones", "Kim", "Lopez",
    "Moore", "Nguyen", "Okafor", "Patel", "Quist", "Rossi", "Smith", "Taylor", "Ueda", "Vogel", "Weber", "Young",
)  # fmt: skip
_BEYOND_ASCII = (
    "Jörg Müller", "Zoë Brontë", "Łukasz Żak", "Søren Ægir", "Đặng Thị Hà", "山田 太郎", "김민준", "王小明",
    "Νίκος Παπάς", "Ольга Ким", "نور حداد", "Ana\u0308 Decomposed", "Ann 🎶", "👩\u200d👩\u200d👧 Family",
)  # fmt: skip
# NUL is left out: PostgreSQL can't store it in text. BEL stands for the control characters.
_AWKWARD = (
    "Doe, Jo", "Acme: Sales; EU", 'A "B" C', "O'Neil & Sons <Records>", "Ann\r\nBcc: x@evil.example",
    "Two\nLines", "Bell\x07 Ringer", "{{ customer.name }}", "ann@example.com", "", "Back\\slash", "  spaced   out  ",
    "Very Long Name " * 20,
)  # fmt: skip
_DOMAINS = ("example.com", "example.net", "example.org", "mail.example", "post.example")
_UPPER_DOMAINS = ("EXAMPLE.COM", "Mail.Example")
_IDN_DOMAINS = ("bücher.example", "例え.example", "xn--mnchen-3ya.example")

_MALFORMED: dict[str, Callable[[str], str | None]] = {
    "null": lambda local: None,
    "empty": lambda local: "",
    "no at sign": lambda local: f"{local}.example.com",
    "no domain": lambda local: f"{local}@",
    "dot before the at sign": lambda local: f"{local}.@example.com",
    "two dots": lambda local: f"{local}..x@example.com",
    "leading dot": lambda local: f".{local}@example.com",
    "two at signs": lambda local: f"{local}@@example.com",
    "space inside": lambda local: f"{local} x@example.com",
    "line break inside": lambda local: f"{local}@example.com\nBcc: x@evil.example",
    "quoted local part": lambda local: f'"{local}@evil.example x"@example.com',
    "name and brackets": lambda local: f"Someone <{local}@example.com>",
    "two addresses": lambda local: f"{local}@example.com, x@example.com",
    "too long": lambda local: f"{local * 30}@example.com",
}


class Person(NamedTuple):
    """One invented customer. ``malformed`` and ``shares_with`` say what is odd about the address."""

    customer_id: str
    email: str | None
    name: str
    opted_in: bool
    malformed: str = ""
    shares_with: str = ""

    @property
    def beyond_ascii(self) -> bool:
        """Whether the name or the address needs more than ASCII."""
        return not (self.name + (self.email or "")).isascii()


def person(seed: int, number: int) -> Person:
    """Return the customer with a number: 6 % opted out, 2 % beyond ASCII, 0.5 % malformed, some shared."""
    dice = _dice(seed, number)
    local = f"{_FIRST[dice[1] % 24]}.{_LAST[dice[2] % 24]}.{number}".lower()
    customer, opted_in = _customer_id(number), dice[0] % 100 >= 6
    if dice[3] % 1000 < 5:
        kind = tuple(_MALFORMED)[dice[4] % len(_MALFORMED)]
        return Person(customer, _MALFORMED[kind](local), _name(dice), opted_in, malformed=kind)
    if _shares(dice) and number > 1 and not _shares(_dice(seed, number - 1)):
        other = person(seed, number - 1)
        if other.email and not other.malformed:
            return Person(
                customer, other.email.capitalize(), _name(dice), opted_in, shares_with=other.customer_id
            )
    return Person(customer, _email(dice, local), _name(dice), opted_in)


def _shares(dice: list[int]) -> bool:
    return 5 <= dice[3] % 1000 < 10


def _email(dice: list[int], local: str) -> str:
    draw = dice[5] % 1000
    if draw < 4:
        return f"{local}@{_IDN_DOMAINS[dice[6] % len(_IDN_DOMAINS)]}"
    if draw < 6:
        return f"jörg.{local}@example.com"
    if draw < 11:
        return f"{local}@{_UPPER_DOMAINS[dice[6] % len(_UPPER_DOMAINS)]}"
    if draw < 13:
        return f"{local}@example.com."
    return f"{local}@{_DOMAINS[dice[6] % len(_DOMAINS)]}"


def _name(dice: list[int]) -> str:
    draw = dice[7] % 1000
    if draw < 16:
        return _BEYOND_ASCII[dice[8] % len(_BEYOND_ASCII)]
    if draw < 20:
        return _AWKWARD[dice[8] % len(_AWKWARD)]
    return f"{_FIRST[dice[1] % 24]} {_LAST[dice[2] % 24]}"


def _customer_id(number: int) -> str:
    return f"cdnow-{number:05d}"


def _dice(seed: int, number: int) -> list[int]:
    digest = hashlib.sha256(f"{seed}:{number}".encode()).digest()
    return [int.from_bytes(digest[place : place + 3], "big") for place in range(0, 27, 3)]
