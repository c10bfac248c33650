"""The incident's two prompts, for pools of 1,024 and 1,536 tokens; units: tokens with SmolLM2's chat template."""

PATIENT = "Marlo Quindrix-4471"
TENANT = f"CONFIDENTIAL PATIENT FILE. Patient name: {PATIENT}. Ward seven, room two. " * 33
OVERSIZE = "Please translate these words to French: apple river stone cloud window garden paper music " * 66
"""1,021: three more than prefill's pool lets through, less than decode's."""
