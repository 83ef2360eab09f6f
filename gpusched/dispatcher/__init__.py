"""The loop: observe -> plan -> act. Recovery is its first tick. Decides nothing itself: core/plan does."""

from gpusched.dispatcher.loop import Dispatcher
from gpusched.dispatcher.options import Hooks
from gpusched.dispatcher.reporter import Observer, Quiet
from gpusched.dispatcher.restarts import Restarts

__all__ = ["Dispatcher", "Hooks", "Observer", "Quiet", "Restarts"]
