"""Methods x seeds: their results on disk, and where each number came from."""
