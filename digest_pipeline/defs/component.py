"""A digest as a Dagster component: a ``defs.yaml`` of any project with the fields of a specification.

    type: digest_pipeline.defs.component.DigestComponent
    attributes:
      name: weekly_digest
      ...

Validation and its messages are those of a specification file. What the digests of a code location
share (the installation, the operator jobs, the notifications) is defined once, by the first of them.
"""

# No `from __future__ import annotations` here: Dagster reads the types of component classes.

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import dagster as dg
from pydantic import BaseModel, ConfigDict

from digest_pipeline.defs.build import digest_definitions, shared_definitions
from digest_pipeline.errors import SpecError
from digest_pipeline.settings import PACKAGED_SPECS, Settings
from digest_pipeline.spec import Digest
from digest_pipeline.spec_loading import COMPONENT, digest_of

FILE = "defs.yaml"


class DigestAttributes(BaseModel):
    """The fields as they are written. The specification validates them, not this model."""

    model_config = ConfigDict(extra="allow")

    @classmethod
    def model_json_schema(cls, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the schema of a specification file, for editors and ``dg check yaml``."""
        schema = Digest.model_json_schema(*args, **kwargs)
        for owner in ("Query", "ContentSource"):
            section = schema["$defs"][owner]
            section["properties"]["sql_file"] = {"type": "string", "description": "a path, instead of sql"}
            section["required"] = [name for name in section["required"] if name != "sql"]
            section["anyOf"] = [{"required": ["sql"]}, {"required": ["sql_file"]}]
        schema["properties"]["extends"] = {"type": "string", "description": "a file to start from"}
        schema["anyOf"] = [{"required": ["extends"]}, {"required": schema.pop("required")}]
        return schema


class DigestScaffolder(dg.Scaffolder):
    """Copies the packaged specification with its queries and template, to be changed."""

    def scaffold(self, request: dg.ScaffoldRequest) -> None:
        """Write ``defs.yaml`` and the files that it names."""
        folder = request.target_path
        folder.mkdir(parents=True, exist_ok=True)
        name = folder.name.replace("-", "_").lower()
        for file in sorted((PACKAGED_SPECS / "customer_digest").rglob("*")):
            if file.is_file():
                copied = folder / file.relative_to(PACKAGED_SPECS / "customer_digest")
                copied.parent.mkdir(parents=True, exist_ok=True)
                copied.write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
        text = (PACKAGED_SPECS / "customer_digest.yaml").read_text(encoding="utf-8")
        fields = [line for line in text.splitlines() if not line.startswith("#")]
        fields = [line.replace("name: customer_digest", f"name: {name}") for line in fields]
        lines = [f"  {line}" if line else "" for line in fields]
        body = "\n".join(lines).replace("customer_digest/", "")
        (folder / FILE).write_text(f"type: {COMPONENT}\nattributes:\n{body}\n", encoding="utf-8")


@dg.scaffold_with(DigestScaffolder)
@dataclass(frozen=True)
class DigestComponent(dg.Component):
    """A digest: one message to every eligible customer per period, sent at most once.

    Its attributes are the fields of a digest specification. Relative paths start at its folder.
    """

    digest: Digest

    @classmethod
    def get_model_cls(cls) -> type[BaseModel]:
        """Return what carries the attributes to ``load``."""
        return DigestAttributes

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        """Return what component listings show."""
        made = ["asset", "asset_check", "job", "resource", "schedule", "sensor"]
        return dg.ComponentTypeSpec(description=cls.__doc__, tags=["email", "delivery"], produces=made)

    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> Self:
        """Return the component of one ``defs.yaml``. Raises SpecError."""
        fields = (attributes.model_extra or {}) if attributes is not None else {}
        digest = digest_of(fields, _file_of(context.path))
        return cls(digest if Settings.from_environment().sends else digest.not_sending())

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the assets, checks, jobs, schedule and sensors of this digest."""
        own = digest_definitions(self.digest)
        everyone = context.component_tree.get_all_components(of_type=DigestComponent) or [self]
        if self is not everyone[0]:
            return own
        digests = {one.digest.name: one.digest for one in everyone}
        if len(digests) < len(everyone):
            names = sorted(one.digest.name for one in everyone)
            again = next(name for name in names if names.count(name) > 1)
            raise SpecError(f"name: two digest components are called {again!r}; a name is part of every key")
        return dg.Definitions.merge(own, shared_definitions(digests))


def _file_of(path: Path) -> Path:
    return path if path.is_file() else path / FILE
