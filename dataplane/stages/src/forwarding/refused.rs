//! The error of the forwarding tables.

/// The error for a refused route or neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There are too many routes, paths or neighbours, or readers may still use the memory that removed routes have
    /// occupied.
    #[error("the tables have no room for more routes, paths or neighbours")]
    Full,
    /// The slots for this neighbour belonged to removed neighbours. Stages may still hold packets for the removed
    /// neighbours.
    #[error("packets may still wait for removed neighbours in the slots for this neighbour")]
    Retired,
}
