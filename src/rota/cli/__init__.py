"""The command line: one file for each group of commands; no rules, only words, tables and exit statuses."""
