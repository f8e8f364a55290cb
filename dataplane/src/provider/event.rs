//! Asynchronous events: what a device has to say outside any completion.

use std::fmt;

use crate::provider::code::codes;

codes! {
    /// What happened: `enum ibv_event_type`.
    EventKind {
        /// A completion queue overran, or failed: it cannot be used any more.
        CqErr = 0 "IBV_EVENT_CQ_ERR",
        /// A queue pair failed where no completion could tell.
        QpFatal = 1 "IBV_EVENT_QP_FATAL",
        /// The peer sent what the queue pair does not allow.
        QpReqErr = 2 "IBV_EVENT_QP_REQ_ERR",
        /// The peer touched memory that it may not.
        QpAccessErr = 3 "IBV_EVENT_QP_ACCESS_ERR",
        /// The first packet came before the queue pair was ready to send.
        CommEst = 4 "IBV_EVENT_COMM_EST",
        /// A send queue that was stopped has finished what was under way.
        SqDrained = 5 "IBV_EVENT_SQ_DRAINED",
        /// A connection moved to its other path.
        PathMig = 6 "IBV_EVENT_PATH_MIG",
        /// A connection could not move to its other path.
        PathMigErr = 7 "IBV_EVENT_PATH_MIG_ERR",
        /// The device is gone for good.
        DeviceFatal = 8 "IBV_EVENT_DEVICE_FATAL",
        /// A port carries traffic again. May come twice.
        PortActive = 9 "IBV_EVENT_PORT_ACTIVE",
        /// A port carries no traffic any more.
        PortErr = 10 "IBV_EVENT_PORT_ERR",
        /// A port has another local identifier.
        LidChange = 11 "IBV_EVENT_LID_CHANGE",
        /// A port's partition keys changed.
        PkeyChange = 12 "IBV_EVENT_PKEY_CHANGE",
        /// Another subnet manager took over.
        SmChange = 13 "IBV_EVENT_SM_CHANGE",
        /// A shared receive queue failed.
        SrqErr = 14 "IBV_EVENT_SRQ_ERR",
        /// A shared receive queue holds fewer receives than it was told to watch for.
        SrqLimitReached = 15 "IBV_EVENT_SRQ_LIMIT_REACHED",
        /// A queue pair in error took its last receive from a shared queue.
        QpLastWqeReached = 16 "IBV_EVENT_QP_LAST_WQE_REACHED",
        /// The subnet manager wants registrations anew.
        ClientReregister = 17 "IBV_EVENT_CLIENT_REREGISTER",
        /// A port's addresses changed.
        GidChange = 18 "IBV_EVENT_GID_CHANGE",
        /// A work queue failed.
        WqFatal = 19 "IBV_EVENT_WQ_FATAL",
    }
}

/// What an event is about, and so what its number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventSubject {
    /// A completion queue.
    CompletionQueue,
    /// A queue pair.
    QueuePair,
    /// A shared receive queue.
    SharedReceiveQueue,
    /// A work queue.
    WorkQueue,
    /// A port.
    Port,
    /// The whole device.
    Device,
}

impl EventKind {
    /// What happened, in words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::CqErr => "the completion queue failed",
            Self::QpFatal => "the queue pair failed",
            Self::QpReqErr => "the peer sent what the queue pair does not allow",
            Self::QpAccessErr => "the peer touched memory that it may not",
            Self::CommEst => "the first packet came before the queue pair was ready to send",
            Self::SqDrained => "the send queue has finished what was under way",
            Self::PathMig => "the connection moved to its other path",
            Self::PathMigErr => "the connection could not move to its other path",
            Self::DeviceFatal => "the device is gone for good",
            Self::PortActive => "the link is up",
            Self::PortErr => "the link is down",
            Self::LidChange => "the local identifier changed",
            Self::PkeyChange => "the partition keys changed",
            Self::SmChange => "another subnet manager took over",
            Self::SrqErr => "the shared receive queue failed",
            Self::SrqLimitReached => "the shared receive queue runs low",
            Self::QpLastWqeReached => "the failed queue pair took its last receive",
            Self::ClientReregister => "the subnet manager wants registrations anew",
            Self::GidChange => "the addresses of the link changed",
            Self::WqFatal => "the work queue failed",
            Self::Unknown(_) => "something happened that has no name here",
        }
    }

    /// What events of this kind are about.
    pub const fn subject(self) -> EventSubject {
        match self {
            Self::CqErr => EventSubject::CompletionQueue,
            Self::QpFatal
            | Self::QpReqErr
            | Self::QpAccessErr
            | Self::CommEst
            | Self::SqDrained
            | Self::PathMig
            | Self::PathMigErr
            | Self::QpLastWqeReached => EventSubject::QueuePair,
            Self::SrqErr | Self::SrqLimitReached => EventSubject::SharedReceiveQueue,
            Self::WqFatal => EventSubject::WorkQueue,
            Self::PortActive
            | Self::PortErr
            | Self::LidChange
            | Self::PkeyChange
            | Self::SmChange
            | Self::ClientReregister
            | Self::GidChange => EventSubject::Port,
            Self::DeviceFatal | Self::Unknown(_) => EventSubject::Device,
        }
    }
}

/// An asynchronous event: `struct ibv_async_event`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// What happened.
    pub kind: EventKind,
    /// To which: the number of the queue pair, completion queue or port; 0 for the device. [`EventKind::subject`] tells
    /// what it counts.
    pub element: u32,
}

impl fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subject = match self.kind.subject() {
            EventSubject::CompletionQueue => "completion queue",
            EventSubject::QueuePair => "queue pair",
            EventSubject::SharedReceiveQueue => "shared receive queue",
            EventSubject::WorkQueue => "work queue",
            EventSubject::Port => "port",
            EventSubject::Device => return write!(f, "{}", self.kind),
        };
        write!(f, "{} on {subject} {}", self.kind, self.element)
    }
}
