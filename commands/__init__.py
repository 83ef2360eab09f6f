"""The stage runners: programs that jobs run; they import nothing of the dispatcher."""
