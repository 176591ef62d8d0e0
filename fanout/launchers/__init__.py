"""Consumer launchers: how a stream's consumers are started, stopped and counted."""
