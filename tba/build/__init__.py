"""Settings to objects: the only room that takes the whole settings and makes the parts."""
