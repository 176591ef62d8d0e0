"""The story of what never gets lost: an outbox, and a consumer that handles once, killed at random."""
