"""What stands around every request, one idea a file."""
