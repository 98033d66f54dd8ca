"""What a function closes over: captured values, found, taken out, and replaced while it runs."""
