"""`gnnhpc data`: listing, getting and checking data sets. Imports everything in data."""
