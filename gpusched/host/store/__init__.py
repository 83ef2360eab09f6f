"""The database of a queue: the only SQL, in small functions and short transactions. Decides nothing.

`Store` is one open connection. The other modules hold functions over it, by subject; each takes the store first:

    with Store(path) as store:
        job_table.cancel(store, 3, now)

Several processes may use one database at once (the dispatcher, `gpusched cancel`, a second `gpusched run`); each
function is one transaction of its own unless it runs inside `store.transaction()`.
"""

from gpusched.host.store.connection import Busy, DiskFull, Store, StoreError, TransientError

__all__ = ["Busy", "DiskFull", "Store", "StoreError", "TransientError"]
