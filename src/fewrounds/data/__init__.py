"""Where the data of the workers come from, and how they are split."""
