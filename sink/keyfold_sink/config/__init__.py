"""The sink's configuration: one table of options, the keys of other sinks, and all checks of a configuration."""
