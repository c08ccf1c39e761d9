"""The log: its format, names and manifest, and the only code that writes manifests."""
