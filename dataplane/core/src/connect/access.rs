//! The access rights of the peer to registered memory. A config lists the permitted operations.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::verbs::Access;

/// An access right of the peer.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
pub(super) enum RemoteAccess {
    /// RDMA write.
    #[serde(rename = "remote_write")]
    Write,
    /// RDMA read.
    #[serde(rename = "remote_read")]
    Read,
    /// Atomic compare-and-swap and fetch-and-add.
    #[serde(rename = "remote_atomic")]
    Atomic,
}

const RIGHTS: [(RemoteAccess, Access); 3] = [
    (RemoteAccess::Write, Access::REMOTE_WRITE),
    (RemoteAccess::Read, Access::REMOTE_READ),
    (RemoteAccess::Atomic, Access::REMOTE_ATOMIC),
];

pub(super) fn serialize<S: Serializer>(access: &Access, serializer: S) -> Result<S::Ok, S::Error> {
    let rights = RIGHTS.into_iter().filter(|(_, flag)| access.contains(*flag)).map(|(right, _)| right);
    rights.collect::<Vec<_>>().serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Access, D::Error> {
    let rights = Vec::<RemoteAccess>::deserialize(deserializer)?;
    Ok(rights.into_iter().map(|right| RIGHTS[right as usize].1).collect())
}
