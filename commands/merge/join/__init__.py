"""The rules by which records, dicts and arrays of several parts become one."""
