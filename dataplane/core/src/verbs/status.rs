//! The result of a work request.

use crate::verbs::code::codes;

macro_rules! statuses {
    ($($variant:ident = $raw:literal $name:literal, $description:literal, $cause:literal;)*) => {
        codes! {
            /// The result of a work request: `enum ibv_wc_status`.
            WcStatus { $(#[doc = concat!($description, ".")] $variant = $raw $name,)* }
        }

        impl WcStatus {
            /// Returns a short description.
            pub const fn description(self) -> &'static str {
                match self {
                    $(Self::$variant => $description,)*
                    Self::Unknown(_) => "unknown",
                }
            }

            /// Returns the most frequent cause, as a starting point for the diagnosis.
            pub const fn likely_cause(self) -> &'static str {
                match self {
                    $(Self::$variant => $cause,)*
                    Self::Unknown(_) => {
                        "a status that verbs.h does not define: check vendor_err and the driver version"
                    }
                }
            }
        }
    };
}

statuses! {
    Success = 0 "IBV_WC_SUCCESS", "success",
        "no error; every earlier unsignalled request of the send queue succeeded too";
    LocLenErr = 1 "IBV_WC_LOC_LEN_ERR", "local length error",
        "a message or a raw frame longer than the posted receive, or a send longer than the queue pair permits";
    LocQpOpErr = 2 "IBV_WC_LOC_QP_OP_ERR", "local QP operation error",
        "an opcode that this type of queue pair does not have, or an address handle of another protection domain";
    LocEecOpErr = 3 "IBV_WC_LOC_EEC_OP_ERR", "local EE context operation error",
        "a driver bug: this status is only for reliable datagrams, which no device supports";
    LocProtErr = 4 "IBV_WC_LOC_PROT_ERR", "local protection error",
        "a scatter/gather element with a wrong lkey, outside its region, of another protection domain, or without \
         local write access";
    WrFlushErr = 5 "IBV_WC_WR_FLUSH_ERR", "work request flushed error",
        "the queue pair is in the error state; the first failed completion has the reason";
    MwBindErr = 6 "IBV_WC_MW_BIND_ERR", "memory bind operation error",
        "a memory window of another protection domain, or access that its region does not permit";
    BadRespErr = 7 "IBV_WC_BAD_RESP_ERR", "bad response error",
        "a response that does not match the request: the peers disagree on the state of the connection";
    LocAccessErr = 8 "IBV_WC_LOC_ACCESS_ERR", "local access error",
        "the peer wrote with immediate data, and the local region does not permit the write";
    RemInvReqErr = 9 "IBV_WC_REM_INV_REQ_ERR", "remote invalid request error",
        "the peer has not enabled the operation, its receive is too small, or an atomic is not aligned to 8 bytes";
    RemAccessErr = 10 "IBV_WC_REM_ACCESS_ERR", "remote access error",
        "a wrong rkey, an address outside the peer's region, or access that the region does not permit";
    RemOpErr = 11 "IBV_WC_REM_OP_ERR", "remote operation error",
        "the peer could not finish the operation: its own completion has the reason";
    RetryExcErr = 12 "IBV_WC_RETRY_EXC_ERR", "transport retry counter exceeded",
        "no acknowledgement from the peer: the peer is gone, its number or address is wrong, or the path loses packets";
    RnrRetryExcErr = 13 "IBV_WC_RNR_RETRY_EXC_ERR", "receiver-not-ready retry counter exceeded",
        "the peer posted no receive in time";
    LocRddViolErr = 14 "IBV_WC_LOC_RDD_VIOL_ERR", "local RDD violation error",
        "a driver bug: this status is only for reliable datagrams, which no device supports";
    RemInvRdReqErr = 15 "IBV_WC_REM_INV_RD_REQ_ERR", "remote invalid RD request",
        "a driver bug: this status is only for reliable datagrams, which no device supports";
    RemAbortErr = 16 "IBV_WC_REM_ABORT_ERR", "remote aborted error",
        "the peer aborted the operation";
    InvEecnErr = 17 "IBV_WC_INV_EECN_ERR", "invalid EE context number",
        "a driver bug: this status is only for reliable datagrams, which no device supports";
    InvEecStateErr = 18 "IBV_WC_INV_EEC_STATE_ERR", "invalid EE context state",
        "a driver bug: this status is only for reliable datagrams, which no device supports";
    FatalErr = 19 "IBV_WC_FATAL_ERR", "fatal error",
        "the device or the transport failed permanently: check for a DEVICE_FATAL event and read the kernel log";
    RespTimeoutErr = 20 "IBV_WC_RESP_TIMEOUT_ERR", "response timeout error",
        "the response of the peer came too late";
    GeneralErr = 21 "IBV_WC_GENERAL_ERR", "general error",
        "a kernel interface is down or deleted, or refused the frame; on an RDMA device, vendor_err has the cause";
    TmErr = 22 "IBV_WC_TM_ERR", "tag matching error",
        "the tag-matching list of the device differs from the list of the application";
    TmRndvIncomplete = 23 "IBV_WC_TM_RNDV_INCOMPLETE", "tag matching rendezvous left to software",
        "a rendezvous message that the device leaves for software to complete";
}
