"""What a provider can be made to do to the next request."""

from enum import Enum, auto


class Situation(Enum):
    ACCEPTS = auto()
    REFUSES_THE_RECIPIENT = auto()
    HAS_SUPPRESSED_THE_RECIPIENT = auto()
    REFUSES_THE_ACCOUNT = auto()
    THROTTLES = auto()
    THROTTLES_UNTIL_A_DATE = auto()
    IS_UNREACHABLE = auto()
    RESETS_AFTER_ACCEPTING = auto()
    SILENT_AFTER_ACCEPTING = auto()
    UNREADABLE_AFTER_ACCEPTING = auto()
    CUT_OFF_AFTER_ACCEPTING = auto()
    A_PAGE_AFTER_ACCEPTING = auto()
    BAD_GATEWAY_AFTER_ACCEPTING = auto()
    FAILS_AFTER_ACCEPTING = auto()
    RESETS_BEFORE_ACCEPTING = auto()
    FAILS_TO_BE_ASKED = auto()
    """A look-up gets no readable answer."""
    HIDES_THE_LAST_OF_A_BATCH = auto()
    SHUFFLES_A_BATCH = auto()
    REFUSES_THE_WHOLE_CALL = auto()
