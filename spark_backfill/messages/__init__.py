"""From rows to messages: which rows, by which rules, and how they are staged."""
