"""`loopnest`: scores candidates from the loop nest that their schedule leaves, and from their task."""

#: Name of the family and of its model.
NAME = "loopnest"

#: Names in manifests of earlier releases.
EARLIER_NAMES = ("base",)
