"""Pages with charts and tables: each a single HTML file that asks no network for anything."""

from flowtrain.pages.page import Page, PageError, write_page
from flowtrain.pages.parts import Figure, Picture, Pictures, Section, Table

__all__ = ["Figure", "Page", "PageError", "Picture", "Pictures", "Section", "Table", "write_page"]
