"""Reading specifications from a folder of YAML files, with errors a person can act on.

A file is either a specification, or a component's ``defs.yaml`` that holds the same fields as its
``attributes``: a project made of components is read by the command line too.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from digest_pipeline.errors import SpecError
from digest_pipeline.spec import Digest

COMPONENT = "digest_pipeline.defs.component.DigestComponent"
"""What a ``defs.yaml`` names as its ``type`` where its ``attributes`` are a specification."""

_SQL_OWNERS = ("customers", "content")


def load_folder(folder: Path) -> dict[str, Digest]:
    """Return the digests of a folder by name, from every ``*.yaml`` and ``*.yml`` in it, and from the
    digest components in folders below it.

    Raises SpecError when the folder holds none, a file is wrong, or two files name the same digest.
    """
    if not folder.is_dir():
        raise SpecError(f"{folder}: no such folder of digest specifications (DIGEST_SPECS names it)")
    found: dict[str, Digest] = {}
    for path in _files(folder):
        digest = load_file(path)
        if digest.name in found:
            raise SpecError(f"{path}: name: a digest called {digest.name!r} is already in this folder")
        found[digest.name] = digest
    if not found:
        raise SpecError(f"{folder}: holds no digest specification (*.yaml)")
    return found


def load_file(path: Path) -> Digest:
    """Return the digest one file describes. Raises SpecError naming file, field and nearest name."""
    return _validated(path, _read(path, seen=()))


def digest_of(fields: Mapping[str, Any], file: Path) -> Digest:
    """Return the digest of these fields, as if they stood in ``file``: paths are relative to its folder.

    Raises SpecError as ``load_file`` does.
    """
    return _validated(file, _extended(file, copy.deepcopy(dict(fields)), seen=()))


def _files(folder: Path) -> Iterator[Path]:
    yield from sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")])
    for path in sorted(folder.glob("*/**/defs.yaml")):
        # Other components' files are not ours to read, nor to complain about.
        if COMPONENT in path.read_text(encoding="utf-8", errors="replace"):
            yield path


def _validated(path: Path, fields: dict[str, Any]) -> Digest:
    try:
        return Digest.model_validate(fields)
    except ValidationError as error:
        lines = [f"{path}: {_explain(one)}" for one in error.errors(include_url=False, include_input=False)]
        raise SpecError("\n".join(lines)) from None


def _read(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    if path in seen:
        raise SpecError(f"{path}: extends: goes round in a circle")
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(f"{path}: cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        if isinstance(error, yaml.composer.ComposerError) and "single document" in str(error.context):
            text = "holds several documents (---): give each digest a file of its own"
            raise SpecError(f"{path}: {text}") from None
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise SpecError(f"{path}: is not valid YAML{where}") from error
    if not isinstance(data, dict):
        raise SpecError(f"{path}: must be a mapping of fields")
    if data.get("type") == COMPONENT:
        data = data.get("attributes")
        if not isinstance(data, dict):
            raise SpecError(f"{path}: attributes: must be a mapping of fields")
    return _extended(path, data, seen)


def _extended(path: Path, data: dict[str, Any], seen: tuple[Path, ...]) -> dict[str, Any]:
    data = _resolve_files(path, data)
    base = data.pop("extends", None)
    if base is None:
        return data
    return _merge(_read((path.parent / str(base)).resolve(), (*seen, path)), data)


def _resolve_files(path: Path, data: dict[str, Any]) -> dict[str, Any]:
    for owner in _SQL_OWNERS:
        section = data.get(owner)
        if not isinstance(section, dict):
            continue
        if "sql_file" in section:
            file = path.parent / str(section.pop("sql_file"))
            try:
                section["sql"] = file.read_text(encoding="utf-8")
            except OSError as error:
                raise SpecError(f"{path}: {owner}.sql_file: {file} cannot be read") from error
        if "template" in section:
            section["template"] = (path.parent / str(section["template"])).resolve()
            if not section["template"].is_dir():
                raise SpecError(f"{path}: {owner}.template: no such folder {section['template']}")
    return data


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _merge(merged[key], value)
        else:
            merged[key] = value
    return merged


def _explain(error: Any) -> str:
    path = [str(part) for part in error["loc"]]
    field = ".".join(path)
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(path[-1], _fields_at(path[:-1]), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return f"{field}: no such field{hint}"
    if error["type"] == "missing":
        return f"{field}: is required"
    return f"{field}: {message}" if field else message  # a rule about several fields names them


def _fields_at(path: list[str]) -> list[str]:
    model: Any = Digest
    for part in path:
        field = getattr(model, "model_fields", {}).get(part)
        if field is None:
            return []
        model = field.annotation
    return list(model.model_fields) if isinstance(model, type) and issubclass(model, BaseModel) else []
