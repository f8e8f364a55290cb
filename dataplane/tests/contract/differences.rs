//! Where a device does not do what the standard says: every line, and why.
//!
//! In every case: rxe marks the receives of connections with the flag GRH, as if a header came with them (its library
//! sets it of every packet that came over IP). The standard leaves the flag of connections open, so it is not told.

use crate::bed::Profile;

/// Lines of cases that are others.
struct Difference {
    /// The cases.
    cases: &'static [&'static str],
    /// Who differs.
    of: Who,
    /// The line as the standard has it.
    standard: &'static str,
    /// The lines instead, none or several.
    instead: &'static str,
    /// Why.
    reason: &'static str,
}

/// Who differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    /// The rxe driver of Linux 6.1, and the software device with its profile.
    Rxe,
    /// That driver alone: the software device does not go so far.
    Kernel,
    /// The software device with that profile alone.
    SoftAsRxe,
}

use Who::{Kernel, Rxe, SoftAsRxe};

const NO_EVENT: &str = "rxe raises no events of queue pairs but SQ_DRAINED";
const TWO: &str = "rxe tells of a fault of local memory as of a malformed request: LOC_QP_OP_ERR";
const SHORT: &str = "rxe has no length error: a message too long for its receive is a malformed request";
const NO_SQE: &str = "rxe has no state SQE: it goes to ERR";
const ALIGNED: &str = "rxe's library looks at the address when the atomic is posted";

const DIFFERENCES: &[Difference] = &[
    Difference {
        cases: &["statuses.rc_short_receive"],
        of: Rxe,
        standard: "a send 1 REM_INV_REQ_ERR",
        instead: "a send 1 REM_OP_ERR",
        reason: SHORT,
    },
    Difference {
        cases: &["statuses.rc_short_receive", "statuses.uc_short_receive", "statuses.ud_short_receive"],
        of: Rxe,
        standard: "b receive 1 LOC_LEN_ERR",
        instead: "b receive 1 LOC_QP_OP_ERR",
        reason: SHORT,
    },
    Difference {
        cases: &["statuses.rc_receive_bad_lkey", "statuses.rc_receive_without_local_write"],
        of: Rxe,
        standard: "b receive 1 LOC_PROT_ERR",
        instead: "b receive 1 LOC_QP_OP_ERR",
        reason: TWO,
    },
    Difference {
        cases: &["statuses.rc_send_bad_lkey", "statuses.rc_write_bad_lkey", "statuses.rc_send_of_another_domain"],
        of: Rxe,
        standard: "a send 1 LOC_PROT_ERR",
        instead: "a send 1 LOC_QP_OP_ERR",
        reason: TWO,
    },
    Difference {
        cases: &["statuses.rc_error_flushes_what_is_behind", "memory.deregistered"],
        of: Rxe,
        standard: "a send 2 LOC_PROT_ERR",
        instead: "a send 2 LOC_QP_OP_ERR",
        reason: TWO,
    },
    Difference {
        cases: &[
            "statuses.rc_write_bad_rkey",
            "statuses.rc_write_out_of_bounds",
            "statuses.rc_write_without_permission",
            "statuses.rc_read_without_permission",
            "statuses.rc_write_of_another_domain",
        ],
        of: Rxe,
        standard: "b IBV_EVENT_QP_ACCESS_ERR",
        instead: "",
        reason: NO_EVENT,
    },
    Difference {
        cases: &[
            "statuses.rc_write_not_enabled",
            "statuses.rc_read_not_enabled",
            "statuses.rc_atomic_not_enabled",
            "statuses.rc_read_max_dest_rd_atomic_0",
            "rdma_core.test_atomic_invalid_qp_access",
        ],
        of: Rxe,
        standard: "b IBV_EVENT_QP_REQ_ERR",
        instead: "",
        reason: NO_EVENT,
    },
    Difference {
        cases: &["shared.error_leaves_receives"],
        of: Rxe,
        standard: "last request: true",
        instead: "last request: false",
        reason: "rxe never raises QP_LAST_WQE_REACHED",
    },
    Difference {
        cases: &["statuses.rc_read_max_rd_atomic_0"],
        of: Kernel,
        standard: "posted: ok",
        instead: "posted: EINVAL after 0",
        reason: "on rxe it would never complete: the libibverbs provider does not post it",
    },
    Difference {
        cases: &["statuses.rc_read_max_rd_atomic_0"],
        of: Rxe,
        standard: "a send 1 LOC_QP_OP_ERR",
        instead: "",
        reason: "on rxe it never completes",
    },
    Difference {
        cases: &["statuses.rc_read_max_rd_atomic_0"],
        of: Rxe,
        standard: "a ERR, b RTS",
        instead: "a RTS, b RTS",
        reason: "on rxe it never completes",
    },
    Difference {
        cases: &["statuses.rc_send_with_invalidate_bad_rkey"],
        of: Rxe,
        standard: "a send 1 REM_ACCESS_ERR",
        instead: "a send 1 SEND",
        reason: "rxe answers before it looks at the key",
    },
    Difference {
        cases: &["statuses.ud_too_long"],
        of: Kernel,
        standard: "posted: ok",
        instead: "posted: EINVAL after 0",
        reason: "rxe says success and sends nothing: the libibverbs provider does not post it",
    },
    Difference {
        cases: &["statuses.ud_too_long"],
        of: Kernel,
        standard: "a send 1 LOC_LEN_ERR",
        instead: "",
        reason: "as above",
    },
    Difference {
        cases: &["statuses.ud_too_long"],
        of: SoftAsRxe,
        standard: "a send 1 LOC_LEN_ERR",
        instead: "a send 1 SEND",
        reason: "rxe says success and sends nothing",
    },
    Difference {
        cases: &["statuses.ud_too_long"],
        of: Rxe,
        standard: "a SQE, b RTS",
        instead: "a RTS, b RTS",
        reason: "as above",
    },
    Difference {
        cases: &["states.uc_table"],
        of: Kernel,
        standard: "tried more than 300",
        instead: "SQD>SQD with AttributeMask(STATE | ACCESS_FLAGS | PKEY_INDEX | AV): allowed, EINVAL
                  tried more than 300",
        reason: "the kernel adds the port to a new address, and the port of an unreliable connection may not be changed",
    },
    Difference {
        cases: &["statuses.reset_by_user"],
        of: Rxe,
        standard: "a send 1 SEND",
        instead: "a send 1 SEND
                  b receive 1 RECV 20 bytes",
        reason: "on rxe completions stay in their queue when the queue pair is reset",
    },
    Difference {
        cases: &["opcodes.uc", "opcodes.ud"],
        of: Rxe,
        standard: "RDMA_READ: LOC_QP_OP_ERR, SQE",
        instead: "RDMA_READ: LOC_QP_OP_ERR, ERR",
        reason: NO_SQE,
    },
    Difference {
        cases: &["opcodes.uc", "opcodes.ud"],
        of: Rxe,
        standard: "ATOMIC_CMP_AND_SWP: LOC_QP_OP_ERR, SQE",
        instead: "ATOMIC_CMP_AND_SWP: LOC_QP_OP_ERR, ERR",
        reason: NO_SQE,
    },
    Difference {
        cases: &["opcodes.uc", "opcodes.ud"],
        of: Rxe,
        standard: "ATOMIC_FETCH_AND_ADD: LOC_QP_OP_ERR, SQE",
        instead: "ATOMIC_FETCH_AND_ADD: LOC_QP_OP_ERR, ERR",
        reason: NO_SQE,
    },
    Difference {
        cases: &["opcodes.ud"],
        of: Rxe,
        standard: "RDMA_WRITE: LOC_QP_OP_ERR, SQE",
        instead: "RDMA_WRITE: LOC_QP_OP_ERR, ERR",
        reason: NO_SQE,
    },
    Difference {
        cases: &["opcodes.ud"],
        of: Rxe,
        standard: "RDMA_WRITE_WITH_IMM: LOC_QP_OP_ERR, SQE",
        instead: "RDMA_WRITE_WITH_IMM: LOC_QP_OP_ERR, ERR",
        reason: NO_SQE,
    },
    Difference {
        cases: &["posting.unsignalled_fills_the_queue"],
        of: Rxe,
        standard: "taken: 1 times its depth",
        instead: "taken: 4 times its depth",
        reason: "rxe gives the place of a request back when it is carried out, polled or not",
    },
    Difference {
        cases: &["data.atomic_not_aligned", "rdma_core.test_atomic_non_aligned_addr"],
        of: Rxe,
        standard: "a send 1 REM_INV_REQ_ERR",
        instead: "posted: EINVAL after 0",
        reason: ALIGNED,
    },
    Difference {
        cases: &["data.atomic_not_aligned", "rdma_core.test_atomic_non_aligned_addr"],
        of: Rxe,
        standard: "was 0xeeeeeeeeeeeeeeee, is 0x0",
        instead: "",
        reason: ALIGNED,
    },
    Difference {
        cases: &["completions.refused_by_name"],
        of: SoftAsRxe,
        standard: "cvlan flow_tag tag_matching",
        instead: "cvlan flow_tag ignore_overrun tag_matching",
        reason: "rxe watches for overrun, always",
    },
    Difference {
        cases: &["completions.refused_by_name"],
        of: Kernel,
        standard: "cvlan flow_tag tag_matching",
        instead: "cvlan extended_cq flow_tag ignore_overrun single_threaded tag_matching",
        reason: "the extended queues of rxe's library are broken before version 55, so classic ones are used",
    },
    Difference {
        cases: &["completions.overrun"],
        of: Rxe,
        standard: "can be polled: false",
        instead: "can be polled: true",
        reason: "rxe loses what does not fit, says so, and goes on",
    },
    Difference {
        cases: &[
            "memory.window_1_bounds",
            "memory.window_2_bounds",
            "rdma_core.test_mw_type1",
            "rdma_core.test_mw_type2",
        ],
        of: Kernel,
        standard: "a send 3 REM_ACCESS_ERR",
        instead: "a send 3 RDMA_WRITE",
        reason: "rxe holds accesses through a window to the bounds of the region, not of the window",
    },
    Difference {
        cases: &["datagrams.own_qkey"],
        of: Kernel,
        standard: "b receive 1 RECV 50 bytes GRH",
        instead: "",
        reason: "rxe sends a key with the top bit as it is, and the peer drops the datagram",
    },
    Difference {
        cases: &["datagrams.own_qkey"],
        of: Kernel,
        standard: "b receive 2 RECV 50 bytes GRH",
        instead: "b receive 1 RECV 50 bytes GRH",
        reason: "as above: the second datagram takes the first receive",
    },
    Difference {
        cases: &["datagrams.handle_of_another_domain"],
        of: Kernel,
        standard: "posted: ok",
        instead: "posted: EINVAL after 0",
        reason: "the libibverbs provider looks at the domain of the handle",
    },
    Difference {
        cases: &["datagrams.handle_of_another_domain"],
        of: Kernel,
        standard: "a send 1 LOC_QP_OP_ERR",
        instead: "",
        reason: "as above",
    },
];

/// The lines that a device has to tell where the standard has these.
///
/// # Errors
/// A difference of this case is of no line.
pub(crate) fn apply(case: &str, profile: Profile, kernel: bool, standard: &[String]) -> Result<Vec<String>, String> {
    let mut lines: Vec<Option<String>> = standard.iter().cloned().map(Some).collect();
    let mut instead: Vec<Vec<String>> = vec![Vec::new(); lines.len()];
    for it in DIFFERENCES.iter().filter(|it| it.cases.contains(&case)) {
        let applies = match it.of {
            Rxe => profile == Profile::Rxe,
            Kernel => kernel,
            SoftAsRxe => profile == Profile::Rxe && !kernel,
        };
        if !applies {
            continue;
        }
        // Lines may be alike: the first that is still there.
        let at = lines.iter().position(|line| line.as_deref() == Some(it.standard));
        let at = at.ok_or_else(|| format!("no line `{}` (difference: {})", it.standard, it.reason))?;
        lines[at] = None;
        instead[at] = it.instead.lines().map(|line| line.trim().to_owned()).filter(|it| !it.is_empty()).collect();
    }
    let told = lines.into_iter().zip(instead);
    Ok(told.flat_map(|(line, instead)| line.map_or(instead, |line| vec![line])).collect())
}

/// A difference is of a case that there is.
pub(crate) fn check_names(cases: &[&str]) {
    for it in DIFFERENCES {
        for case in it.cases {
            assert!(cases.contains(case), "a difference of no case: {case} ({:?}, {})", it.of, it.reason);
        }
    }
}
