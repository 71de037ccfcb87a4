from digest_pipeline.lab.providers.command import emulate_command

if __name__ == "__main__":
    emulate_command()
