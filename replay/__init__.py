"""The recovery itself: plan, approval, steps, verification, and the command line."""
