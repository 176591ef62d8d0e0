"""The story of a full disk: offloaded into an archive, freed, and put back at night."""
