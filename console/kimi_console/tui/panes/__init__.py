"""What each pane draws: pure functions from a view to styled lines; no toolkit here."""
