"""What theory says of a problem: its constants, measured, the rounds they predict, and which method to choose."""
