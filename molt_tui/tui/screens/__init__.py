"""One module per screen. A screen asks the app's background for data and draws the answers; it opens nothing itself."""
