"""Looking at responses: which to show, out of the rollout log or out of a merge, and how they look."""
