"""The operator's webhooks: what is said of ModelDeployments at admission, and the hook for Pods of other platforms.

Neither may stand in anybody's way: a mistake of ours, or our absence, admits (docs/webhook.md).
"""
