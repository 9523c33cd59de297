"""`python -m volcano_elastic.cli`."""

from volcano_elastic.cli.main import main

main(prog_name="volcano-elastic")
