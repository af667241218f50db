"""Finds the links of a folder of Markdown files that lead nowhere."""

from linkcheck.links import Link, links_of, resolve
from linkcheck.report import missing_links

__all__ = ["Link", "links_of", "missing_links", "resolve"]
