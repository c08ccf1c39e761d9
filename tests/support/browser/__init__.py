"""`make pages-try`: drive the pages of `keyfold serve` in a real Chromium. See `__main__`."""
