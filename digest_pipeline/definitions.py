"""The Dagster entry point: everything the digests in DIGEST_SPECS define."""

from digest_pipeline.defs.build import build_definitions
from digest_pipeline.settings import Settings

defs = build_definitions(Settings.from_environment().digests())
