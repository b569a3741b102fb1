"""Charts as Vega-Lite specifications: plain data, of plain data."""
