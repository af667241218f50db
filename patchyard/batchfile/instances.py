"""Instances of other projects' files, taken as they are: SWE-bench's and SWE-agent's become jobs of a batch.

An instance is known by its `instance_id` or `problem_statement`. What it says is its id, its issue, its repository and
commit, its tests and its image; every other field (the reference `patch` and the hints among them) is left alone, and
what it does not say comes from the batch's defaults. Formats: SWE-bench's data set card (its lists are written as JSON
text in some releases and as lists in others) and SWE-agent's `SimpleBatchInstance` (its `id` is the older name of
`instance_id`, its `repo_name` without a slash names a folder of the image).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from ledger.errors import BadInput
from patchyard.batchfile.located import LinedDict
from patchyard.batchfile.problems import quoted

DEFAULT_REPOS = "https://github.com/{repo}"
_OWNER_NAME = re.compile(r"^[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+$")
_IMAGE_FIELDS = ("image", "image_name", "docker_image")

LineWhere = Callable[[int], str]


def is_instance(value: dict[str, Any]) -> bool:
    """Whether this is an instance of another project and not a job of ours."""
    return "instance_id" in value or "problem_statement" in value


def as_job(instance: LinedDict, defaults: dict[str, Any], where: LineWhere) -> tuple[LinedDict, str | None]:
    """The instance as a job, and its `test_patch`. Raises BadInput for a field of the wrong shape."""
    job = LinedDict(instance.line)

    def put(field: str, value: object, source: str) -> None:
        job[field] = value
        job.lines[field] = instance.lines.get(source, instance.line)

    name = "instance_id" if "instance_id" in instance else "id"
    for field, source in (("id", name), ("base", "base_commit"), ("issue", "problem_statement")):
        if instance.get(source) is not None:
            put(field, instance[source], source)
    image = next((field for field in _IMAGE_FIELDS if instance.get(field)), None)
    if image:
        put("image", instance[image], image)
    repo, source = _repository(instance, defaults, where)
    if repo is not None:
        put("repo", repo, source)
    acceptance = LinedDict(instance.line)
    for field, source in (("fail_to_pass", "FAIL_TO_PASS"), ("pass_to_pass", "PASS_TO_PASS")):
        if instance.get(source) is not None:
            line = instance.lines.get(source, instance.line)
            acceptance[field] = _ids(instance[source], source, where(line))
            acceptance.lines[field] = line
    if acceptance:
        put("acceptance", acceptance, "FAIL_TO_PASS")
    return job, _test_patch(instance, where)


def _repository(instance: LinedDict, defaults: dict[str, Any], where: LineWhere) -> tuple[str | None, str]:
    """Where the instance's repository is, and the field that says so; None leaves it to the defaults."""
    source = "repo" if instance.get("repo") else "repo_name"
    stated, template = instance.get(source), defaults.get("repos")
    if not stated:
        return None, source
    line = instance.lines.get(source, instance.line)
    if not isinstance(stated, str) or not isinstance(template, str | None):
        return stated, source  # reported as no text by the check of the job
    if source == "repo" and not _OWNER_NAME.match(stated):
        return stated, source
    if source == "repo_name" and ("/" in stated or template is None):
        if "/" not in stated and "repo" not in defaults:
            raise BadInput(
                f"repo_name {quoted(stated)} is a folder of the image, and the code must come from a repository",
                where=where(line),
                remedy="set defaults.repos to where it is, such as repos/{name}.git",
            )
        return (stated, source) if "/" in stated else (None, source)
    return fill(template or DEFAULT_REPOS, _names(stated), "repos", where(line)), source


def _names(stated: str) -> dict[str, str]:
    owner, _, name = stated.rpartition("/")
    return {"repo": stated, "owner": owner, "name": name}


def fill(template: str, names: dict[str, str], field: str, where: str) -> str:
    """`template` with each {placeholder} replaced. Raises BadInput for one that is not in `names`."""

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name not in names:
            known = ", ".join("{" + known + "}" for known in names)
            raise BadInput(f"{field} has the placeholder {quoted(match[0])}", where=where, remedy=f"known are {known}")
        return names[name]

    return re.sub(r"\{([^{}]*)\}", value, template)


def _ids(value: object, field: str, where: str) -> object:
    """Test ids as a list; a JSON text of a list is taken as that list."""
    if not isinstance(value, str):
        return value
    try:
        ids = json.loads(value)
    except (ValueError, RecursionError):
        ids = None
    if not isinstance(ids, list):
        raise BadInput(f"{field} is neither a list nor a list in JSON", where=where, remedy='write it as ["id", "id"]')
    return ids


def _test_patch(instance: LinedDict, where: LineWhere) -> str | None:
    patch = instance.get("test_patch")
    if patch is None or patch == "":
        return None
    if not isinstance(patch, str):
        line = instance.lines.get("test_patch", instance.line)
        raise BadInput("test_patch must be text", where=where(line), remedy="write a unified diff")
    return patch
