"""What a topic's log shows about its producers, without touching any of them."""
