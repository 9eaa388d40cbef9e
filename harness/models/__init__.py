"""The models that the harness builds for itself: a small real one and a tiny random one.

Place in the flow: before the server. Imports `harness.paths` and, inside functions only, what builds them.
"""

from harness.models.demo import demo_model
from harness.models.family import codec_for
from harness.models.store import Progress
from harness.models.tiny import tiny_model
from harness.models.tokenizer import tokenizer_only

__all__ = ["Progress", "codec_for", "demo_model", "tiny_model", "tokenizer_only"]
