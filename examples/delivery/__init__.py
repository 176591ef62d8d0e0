"""The story of what never gets lost: outbox, look-back and handle_once, killed at random."""
