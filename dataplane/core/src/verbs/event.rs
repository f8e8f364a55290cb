//! Asynchronous events: conditions that a device reports outside completions.

use std::fmt;

use crate::verbs::code::codes;

codes! {
    /// The type of an event: `enum ibv_event_type`.
    EventKind {
        /// A completion queue overran or failed, and is unusable.
        CqErr = 0 "IBV_EVENT_CQ_ERR",
        /// A queue pair failed in a way that no completion reports.
        QpFatal = 1 "IBV_EVENT_QP_FATAL",
        /// The peer sent a request that the queue pair does not allow.
        QpReqErr = 2 "IBV_EVENT_QP_REQ_ERR",
        /// The peer accessed memory without permission.
        QpAccessErr = 3 "IBV_EVENT_QP_ACCESS_ERR",
        /// The first packet arrived before the queue pair was ready to send.
        CommEst = 4 "IBV_EVENT_COMM_EST",
        /// A stopped send queue has completed its outstanding requests.
        SqDrained = 5 "IBV_EVENT_SQ_DRAINED",
        /// A connection moved to its alternate path.
        PathMig = 6 "IBV_EVENT_PATH_MIG",
        /// A connection could not move to its alternate path.
        PathMigErr = 7 "IBV_EVENT_PATH_MIG_ERR",
        /// The device failed permanently.
        DeviceFatal = 8 "IBV_EVENT_DEVICE_FATAL",
        /// A port is active again. May be reported twice.
        PortActive = 9 "IBV_EVENT_PORT_ACTIVE",
        /// A port is no longer active.
        PortErr = 10 "IBV_EVENT_PORT_ERR",
        /// The local identifier of a port changed.
        LidChange = 11 "IBV_EVENT_LID_CHANGE",
        /// The partition keys of a port changed.
        PkeyChange = 12 "IBV_EVENT_PKEY_CHANGE",
        /// The subnet manager changed.
        SmChange = 13 "IBV_EVENT_SM_CHANGE",
        /// A shared receive queue failed.
        SrqErr = 14 "IBV_EVENT_SRQ_ERR",
        /// A shared receive queue holds fewer receives than its armed limit.
        SrqLimitReached = 15 "IBV_EVENT_SRQ_LIMIT_REACHED",
        /// A queue pair in state ERR took its last receive from a shared receive queue.
        QpLastWqeReached = 16 "IBV_EVENT_QP_LAST_WQE_REACHED",
        /// The subnet manager requests a new registration.
        ClientReregister = 17 "IBV_EVENT_CLIENT_REREGISTER",
        /// The addresses of a port changed.
        GidChange = 18 "IBV_EVENT_GID_CHANGE",
        /// A work queue failed.
        WqFatal = 19 "IBV_EVENT_WQ_FATAL",
    }
}

/// The kind of object that an event concerns. [`AsyncEvent::element`] is the number of an object of this kind.
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
    /// Returns a description of the event.
    pub const fn words(self) -> &'static str {
        match self {
            Self::CqErr => "the completion queue failed",
            Self::QpFatal => "the queue pair failed",
            Self::QpReqErr => "the peer sent a request that the queue pair does not allow",
            Self::QpAccessErr => "the peer accessed memory without permission",
            Self::CommEst => "the first packet arrived before the queue pair was ready to send",
            Self::SqDrained => "the send queue has completed its outstanding requests",
            Self::PathMig => "the connection moved to its alternate path",
            Self::PathMigErr => "the connection could not move to its alternate path",
            Self::DeviceFatal => "the device failed permanently",
            Self::PortActive => "the link is up",
            Self::PortErr => "the link is down",
            Self::LidChange => "the local identifier changed",
            Self::PkeyChange => "the partition keys changed",
            Self::SmChange => "the subnet manager changed",
            Self::SrqErr => "the shared receive queue failed",
            Self::SrqLimitReached => "the shared receive queue is below its limit",
            Self::QpLastWqeReached => "the failed queue pair took its last receive",
            Self::ClientReregister => "the subnet manager requests a new registration",
            Self::GidChange => "the addresses of the link changed",
            Self::WqFatal => "the work queue failed",
            Self::Unknown(_) => "unknown event",
        }
    }

    /// Returns the kind of object that events of this kind concern.
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

/// An event of a completion channel: an armed completion queue has a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqEvent {
    /// The number of the completion queue.
    pub queue: u32,
    /// The value that the program gave the completion queue: `CqSpec::context`.
    pub context: u64,
}

/// An asynchronous event: `struct ibv_async_event`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// The event type.
    pub kind: EventKind,
    /// The number of the object that the event concerns; 0 for the device. [`EventKind::subject`] returns the kind of
    /// the object, such as a queue pair or a port.
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
