"""Pages with charts and tables: each a single HTML file that asks no network for anything."""

from flowtrain.pages.page import Page, PageError, write_page
from flowtrain.pages.parts import Figure, Section, Table

__all__ = ["Figure", "Page", "PageError", "Section", "Table", "write_page"]
