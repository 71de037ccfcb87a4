"""An SMTP server in a process of its own that records what it accepts and fails on demand.

    with SmtpProcess(tmp_path / "smtp.db", user="u", password="p") as server:
        server.script(Scripted("rcpt", "450 4.2.0 try later"))
        ...                                    # a gateway sends to server.host, server.port
        server.oracle().accepted_count()

``python -m digest_pipeline.lab.smtp`` starts one. It keeps its store, its oracle and its admin side in
common with the sandbox, and no parsing with the gateway: messages are read by the standard library.
"""
