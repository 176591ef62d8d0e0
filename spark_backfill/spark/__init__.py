"""The Spark session, and the machines it works on."""
