"""Charts of the time of ranks, as Vega-Lite specifications."""
