"""The doctor of a workspace: its streams, their rights and sources, and the tool itself."""
