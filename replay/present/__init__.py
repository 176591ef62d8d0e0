"""How recoveries are shown: documents, tables, Markdown."""
