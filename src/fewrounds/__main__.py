from fewrounds.cli import main

main()
