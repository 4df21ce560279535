"""`pagefleet bench`: measurements that anyone can repeat. torch and the engine are loaded inside the commands only."""
