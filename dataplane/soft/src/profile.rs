//! The profile and the limits of a software device. The profile selects whether the device behaves like the standard or
//! like rxe (the kernel's software RoCE driver) in the cases where the two differ.

/// The model for a software device in the cases where the standard and rxe (the kernel's software RoCE driver) differ.
/// Raw packets behave the same in all profiles, because rxe does not support raw packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// The behaviour of the InfiniBand specification, as hardware implements it.
    #[default]
    Spec,
    /// The behaviour of rxe in Linux 6.1.
    Rxe,
}

impl Profile {
    /// Returns the size of a queue for a requested `depth`. With rxe, the size is the smallest number of the form
    /// 2^n - 1 that is at least `depth`.
    pub(super) fn slots(self, depth: u32) -> u32 {
        match self {
            Self::Spec => depth,
            Self::Rxe => u32::MAX.checked_shr(depth.leading_zeros()).unwrap_or(0),
        }
    }
}

/// The limits of a software device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoftLimits {
    /// The maximum number of queue pairs.
    pub max_qp: u32,
    /// The maximum number of outstanding requests on a queue.
    pub max_qp_wr: u32,
    /// The maximum number of scatter/gather elements per request. At most 255.
    pub max_sge: u32,
    /// The maximum number of completion queues.
    pub max_cq: u32,
    /// The maximum number of entries of a completion queue.
    pub max_cqe: u32,
    /// The maximum number of memory regions.
    pub max_mr: u32,
    /// The maximum number of bytes of an inline send.
    pub max_inline: u32,
    /// The maximum number of shared receive queues.
    pub max_srq: u32,
    /// The maximum number of outstanding reads and atomics per queue pair, as requester and as responder.
    pub max_rd_atomic: u8,
}

impl Default for SoftLimits {
    fn default() -> Self {
        Self {
            max_qp: 1024,
            max_qp_wr: 1 << 15,
            max_sge: 16,
            max_cq: 1024,
            max_cqe: 1 << 20,
            max_mr: 1 << 16,
            max_inline: 512,
            max_srq: 1024,
            max_rd_atomic: 128,
        }
    }
}
