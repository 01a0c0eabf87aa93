"""What a run writes to disk: atomic files, journals, checkpoints, locks; and requests to stop."""
