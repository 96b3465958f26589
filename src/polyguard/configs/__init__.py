"""Numbers that a user may change: weights of reward profiles, the recipe of the loop. JSON only, read by their owners."""
