"""How services are asked what became of a business transaction."""
