"""`backlogctl demo`: the story this product exists for, told with real parts."""
