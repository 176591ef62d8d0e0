"""What a scheduler's runbooks do, without the scheduler: detect, choose, plan, carry on, report."""
