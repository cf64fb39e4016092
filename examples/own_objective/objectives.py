"""An objective of one's own: policy gradient with a clipped importance ratio, as PPO and GRPO have it.

tba train --objective.kind examples/own_objective/objectives.py:ClippedPolicyGradient --objective.clip 0.2
"""

from __future__ import annotations

from tba import Evidence, Loss, Objective


class ClippedPolicyGradient(Objective):
    def __init__(self, clip: float = 0.2, kl_weight: float = 0.01) -> None:
        """Settings are keyword arguments: `--objective.clip 0.3`. Their types are checked before the run starts."""
        self.clip = clip
        self.kl_weight = kl_weight

    def __call__(self, evidence: Evidence) -> Loss:
        # G groups of K responses to one prompt: a response is as good as it is better than the others of its group.
        reward_GK = evidence.reward_GK
        advantage_GK = reward_GK - reward_GK.mean(dim=1, keepdim=True)
        # J tokens of all responses: how much likelier each is now than when it was sampled.
        ratio_J = (evidence.policy_J - evidence.behaviour_J).exp()
        advantage_J = evidence.per_token(advantage_GK)
        clipped_J = ratio_J.clamp(1 - self.clip, 1 + self.clip)
        gain_J = (ratio_J * advantage_J).minimum(clipped_J * advantage_J)
        # An estimate of the KL divergence from the reference that is never negative.
        behind_J = evidence.reference_J - evidence.policy_J
        kl_J = behind_J.exp() - behind_J - 1
        # The passes of a step add up, so a mean is a sum over the tokens of the whole step.
        value = -(gain_J - self.kl_weight * kl_J).sum() / evidence.totals.num_tokens
        is_clipped_J = ((ratio_J - 1).abs() > self.clip).to(ratio_J.dtype)
        share_clipped_GK = evidence.per_trajectory(is_clipped_J.detach()) / evidence.length_GK
        return Loss(value, advantage_GK, {"clipped_fraction": share_clipped_GK})
