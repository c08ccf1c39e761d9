"""A log as a DataFrame: `read_log` and `latest_state`."""
