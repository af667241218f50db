"""What the ledger keeps on disks: its own tables, and the images that its jobs will want from the workers' machines."""

from __future__ import annotations

from ledger.connect import Database


def live_images(db: Database) -> set[str]:
    """The digests of the images of all jobs that have not ended."""
    return {row["image"] for row in db.run("live_images")}


def stored_bytes(db: Database) -> dict[str, int]:
    """The size in bytes of each table with its indexes, the largest first."""
    return {row["name"]: row["bytes"] for row in db.run("stored_bytes")}
