"""`python -m harness` is `shardgate`.

Place in the flow: the outermost. Imports the command line only.
"""

from harness.cli import main

main()
