"""What `spark-submit` is given to run `tidelog pipeline`; docs/pipeline.md has an example."""

from tidelog.cli.main import main

main()
