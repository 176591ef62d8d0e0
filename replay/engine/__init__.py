"""The engine of recoveries: plan, approve, run, pause, cancel. It knows no kind."""
