"""Reading what others wrote, within bounds: lines, tables, the Hub; and what earlier stages made."""
