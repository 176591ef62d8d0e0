"""The story of a full disk: drained into an archive, freed, and put back at night."""
