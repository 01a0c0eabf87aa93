"""What a search says at the end: proposals, their ranking, and statistics of BatchNorm."""
