"""What a run tells: reports, metrics, costs and progress."""
