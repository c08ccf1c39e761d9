"""The log: its format, its names, its manifest, and the only code that writes manifests."""
