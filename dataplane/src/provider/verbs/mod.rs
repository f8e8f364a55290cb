//! The libibverbs provider.
