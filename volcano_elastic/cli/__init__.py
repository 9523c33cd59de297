"""The command line: volcano-elastic, also kubectl elastic."""
