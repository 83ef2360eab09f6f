"""The queue's database: the only SQL, in small verbs and short transactions. Decides nothing.

Several processes may use one database at once (the dispatcher, `gpusched cancel`, a second `gpusched run`); each verb
is one transaction of its own unless it runs inside `transaction()`. The classes stand on each other, one floor a file:
Connection, Jobs (the one way to change a state, and what that does to dependants), Submission, Store.
"""

from gpusched.host.store.connection import SCHEMA_VERSION, DiskFull, StoreError
from gpusched.host.store.verbs import SHAPES_MAX, Store

__all__ = ["SCHEMA_VERSION", "SHAPES_MAX", "DiskFull", "Store", "StoreError"]
