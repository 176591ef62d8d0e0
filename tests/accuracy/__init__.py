"""How exact a rebuild is: simulated traffic in real services, and an oracle that knows what was lost."""
