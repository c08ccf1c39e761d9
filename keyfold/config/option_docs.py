"""A model's options as a Markdown table, for the documentation."""

from __future__ import annotations

from typing import Final, get_args

from pydantic import BaseModel, SecretStr

from keyfold.config.option_fields import Entry, Importance, Overrides, entries

_TYPES: Final = {
    bool: "boolean",
    int: "whole number",
    float: "number",
    SecretStr: "secret",
    Overrides: "keys and values",
}


def markdown_table(model: type[BaseModel]) -> str:
    """Return the model's options by group as declared; in a group the important ones come first, then by name."""
    rank = {name: place for place, name in enumerate(get_args(Importance))}
    groups: dict[str, list[Entry]] = {"": []}  # options without a group come first: they have no heading
    for entry in entries(model):
        groups.setdefault(entry.group, []).append(entry)
    parts: list[str] = []
    for group, members in groups.items():
        if not members:
            continue
        lines = [f"### {group}", ""] if group else []
        lines += ["| key | type | default | importance | what it does |", "| --- | --- | --- | --- | --- |"]
        members.sort(key=lambda entry: (rank[entry.importance], entry.key))
        parts.append("\n".join(lines + [_row(entry) for entry in members]) + "\n")
    return "\n".join(parts)


def _row(entry: Entry) -> str:
    doc = entry.doc.replace("|", "\\|").replace("<", "\\<")
    notes = [note for wanted, note in ((entry.per_topic, "per topic"), (entry.followed, "followed")) if wanted]
    importance = ", ".join([entry.importance, *notes])
    return f"| `{entry.key}` | {_type_name(entry)} | {_default(entry)} | {importance} | {doc} |"


def _default(entry: Entry) -> str:
    if entry.is_required:
        return "(required)"
    return f"`{entry.default}`" if entry.default else ""


def _type_name(entry: Entry) -> str:
    if entry.is_list:
        return "list"
    if entry.choices:
        return " or ".join(f"`{choice}`" for choice in entry.choices)
    return _TYPES.get(entry.leaves[0], "string")
