//! How many cases each bed may skip, by what it lacks. The number is committed, so that it does not grow unseen.

/// What is skipped for want of something, and how often.
pub(crate) type Skips = [(&'static str, usize)];

/// The software device.
pub(crate) const SOFT: &Skips = &[
    ("IBV_QPT_XRC_SEND queue pairs", 3),
    ("device memory", 1),
    ("dma-buf from the contract's traits", 1),
    ("flow rules", 5),
    ("ibv_rereg_mr", 5),
    ("ibv_wr_atomic_write", 1),
    ("ibv_wr_flush", 1),
    ("on-demand paging", 7),
    ("parent domains from the contract's traits", 2),
    ("rate limit", 1),
    ("rss of queue pairs from the contract's traits", 2),
    ("tag_matching", 1),
];

/// Two ends on one software device.
pub(crate) const SOFT_ALONE: &Skips = &[
    ("IBV_QPT_XRC_SEND queue pairs", 3),
    ("device memory", 1),
    ("dma-buf from the contract's traits", 1),
    ("flow rules", 5),
    ("ibv_rereg_mr", 5),
    ("ibv_wr_atomic_write", 1),
    ("ibv_wr_flush", 1),
    ("on-demand paging", 7),
    ("parent domains from the contract's traits", 2),
    ("rate limit", 1),
    ("raw packets to itself", 1),
    ("rss of queue pairs from the contract's traits", 2),
    ("tag_matching", 1),
];

/// The software device with the profile of rxe, which has no raw packets and no stamps.
pub(crate) const RXE: &Skips = &[
    ("IBV_QPT_RAW_PACKET queue pairs", 7),
    ("IBV_QPT_XRC_SEND queue pairs", 3),
    ("device memory", 1),
    ("dma-buf from the contract's traits", 1),
    ("ibv_rereg_mr", 5),
    ("ibv_wr_atomic_write", 1),
    ("ibv_wr_flush", 1),
    ("on-demand paging", 7),
    ("parent domains from the contract's traits", 2),
    ("raw_packet", 1),
    ("rss", 2),
    ("state SQE", 1),
    ("tag_matching", 1),
    ("timestamps", 1),
];

/// Real rxe.
#[cfg(feature = "verbs")]
pub(crate) const KERNEL: &Skips = &[
    ("IBV_QPT_RAW_PACKET queue pairs", 7),
    ("IBV_QPT_XRC_SEND queue pairs", 3),
    ("device memory", 1),
    ("dma-buf from the contract's traits", 1),
    ("extended_cq", 5),
    ("ibv_rereg_mr", 5),
    ("ibv_wr_atomic_write", 1),
    ("ibv_wr_flush", 1),
    ("on-demand paging", 7),
    ("parent domains from the contract's traits", 2),
    ("raw_packet", 1),
    ("rss", 2),
    ("state SQE", 1),
    ("tag_matching", 1),
    ("timestamps", 1),
];

/// Real rxe on the loopback interface, which has no multicast.
#[cfg(feature = "verbs")]
pub(crate) const KERNEL_ALONE: &Skips = &[
    ("IBV_QPT_RAW_PACKET queue pairs", 7),
    ("IBV_QPT_XRC_SEND queue pairs", 3),
    ("device memory", 1),
    ("dma-buf from the contract's traits", 1),
    ("extended_cq", 5),
    ("ibv_rereg_mr", 5),
    ("ibv_wr_atomic_write", 1),
    ("ibv_wr_flush", 1),
    ("multicast on this interface", 1),
    ("on-demand paging", 7),
    ("parent domains from the contract's traits", 2),
    ("raw_packet", 1),
    ("rss", 2),
    ("state SQE", 1),
    ("tag_matching", 1),
    ("timestamps", 1),
];
