"""The loop: observe -> plan -> act. Recovery is its first tick. Decides nothing itself: core/plan does."""

from gpusched.dispatcher.loop import Dispatcher
from gpusched.dispatcher.reporter import Observer, Quiet

__all__ = ["Dispatcher", "Observer", "Quiet"]
