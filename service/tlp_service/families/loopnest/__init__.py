"""`loopnest`: scores candidates from the loop nest that their schedule leaves, and from their task."""
