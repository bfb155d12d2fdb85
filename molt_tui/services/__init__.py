"""What molt-tui can do, shared by the command line and the screens. Functions take a Store or a Run; nothing here prints."""
