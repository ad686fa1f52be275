"""Where data sets come from: published files, a user's own, generators, caches.

Imports core and graphs.
"""
