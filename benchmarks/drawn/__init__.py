"""Pictures of the README, as Vega-Lite specifications of a fixed width."""
