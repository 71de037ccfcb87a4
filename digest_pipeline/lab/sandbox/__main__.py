from digest_pipeline.lab.sandbox.command import serve_command

if __name__ == "__main__":
    serve_command()
