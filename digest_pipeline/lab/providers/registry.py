"""Every emulated provider by the name of the gateway that speaks to it."""

from __future__ import annotations

from digest_pipeline.lab.providers.brevo import Brevo
from digest_pipeline.lab.providers.emulation import Emulation
from digest_pipeline.lab.providers.mailgun import Mailgun
from digest_pipeline.lab.providers.mailjet import Mailjet
from digest_pipeline.lab.providers.postmark import Postmark
from digest_pipeline.lab.providers.resend import Resend
from digest_pipeline.lab.providers.sendgrid import SendGrid
from digest_pipeline.lab.providers.ses import Ses

EMULATIONS: dict[str, type[Emulation]] = {
    kind.name: kind for kind in (Brevo, Mailgun, Mailjet, Postmark, Resend, SendGrid, Ses)
}
