"""What tests share: slow twins of fast code, exact enumeration, small tasks and data."""
