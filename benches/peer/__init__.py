"""The parts of benches/peers."""
