from digest_pipeline.lab.smtp.command import smtp_command

smtp_command()
