"""The plants, a file a class of defects; each changes our code in the process of one rank."""
