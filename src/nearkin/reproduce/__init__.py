"""The papers' result tables and figures, trained again here and set beside what the papers print."""
