//! The differences of the devices from the standard (the InfiniBand specification and the manual pages). A difference
//! is a line that a device adds to the log of a test case instead of the line that the standard requires.
//!
//! Two differences affect every case, so the cases do not log them. Both are about the GRH flag of receives:
//!
//! - On connected queue pairs, the standard does not define this flag. The library of rxe (Soft-RoCE) sets the flag for
//!   every packet that came over IP, although no GRH precedes the message.
//! - The library of efa does not set the flag for datagrams (`efa_process_cqe` in rdma-core). The 40 bytes before a
//!   datagram are then undefined. The cases therefore require this flag only on Ethernet and InfiniBand. The link layer of
//!   efa is neither ([`logs_grh`]).

use dataplane::verbs::{Access, LinkLayer, QpType};

use crate::bed::{EndpointSpec, Profile, Stop, lacks_type};

/// A line of the log that a device reports differently in some test cases.
struct Difference {
    /// The test cases.
    cases: &'static [&'static str],
    /// The devices.
    applies_to: AppliesTo,
    /// The line that the standard requires.
    standard: &'static str,
    /// The lines that the device reports instead: none, one or several.
    instead: &'static str,
    /// The reason for the difference.
    reason: &'static str,
}

/// The devices that a difference applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AppliesTo {
    /// The rxe driver of Linux 6.1, and the software device with the rxe profile.
    Rxe,
    /// The rxe driver of Linux 6.1 only. The software device does not reproduce the difference.
    KernelRxe,
    /// The software device with the rxe profile only.
    SoftAsRxe,
    /// Every device of the kernel, because the provider `verbs` or the common code of the kernel differs.
    Verbs,
    /// Every device of the kernel whose endpoints use RoCE v2.
    RoceV2,
    /// Devices for which [`Device::checks_every_key`](dataplane::verbs::Device::checks_every_key) returns `false`.
    UncheckedKeys,
}

use AppliesTo::{KernelRxe, RoceV2, Rxe, SoftAsRxe, UncheckedKeys, Verbs};

/// The properties of a test bed that decide which differences apply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BedProperties {
    pub(crate) profile: Profile,
    /// Whether the devices are kernel devices.
    pub(crate) kernel: bool,
    /// The link layer of the ports of the devices.
    pub(crate) link_layer: LinkLayer,
    /// Whether the endpoints use GIDs of RoCE v2.
    pub(crate) roce_v2: bool,
    /// See [`Device::checks_every_key`](dataplane::verbs::Device::checks_every_key).
    pub(crate) checks_every_key: bool,
}

impl AppliesTo {
    fn matches(self, bed: BedProperties) -> bool {
        let is_rxe = bed.profile == Profile::Rxe;
        match self {
            Rxe => is_rxe,
            KernelRxe => is_rxe && bed.kernel,
            SoftAsRxe => is_rxe && !bed.kernel,
            Verbs => bed.kernel,
            RoceV2 => bed.kernel && bed.roce_v2,
            UncheckedKeys => !bed.checks_every_key,
        }
    }
}

const NO_EVENT: &str = "rxe raises no queue pair event except SQ_DRAINED";
const LOCAL_MEMORY: &str = "rxe reports local memory errors as a malformed request: LOC_QP_OP_ERR";
const NO_LENGTH_ERROR: &str =
    "rxe has no length error: it reports a message that is too long for its receive as a malformed request";
const NO_SQE: &str = "rxe has no state SQE: the queue pair goes to ERR";
const ALIGNMENT_CHECKED: &str = "rxe's library checks the address when the atomic is posted";
const READ_NOT_POSTED: &str =
    "on rxe the read would never complete, so Dataplane's provider `verbs` refuses the read on every device";
const TOO_LONG_NOT_POSTED: &str =
    "rxe reports success and sends nothing, so Dataplane's provider `verbs` refuses the send on every device";
const TOO_LONG_NOT_SENT: &str = "rxe reports success and sends nothing";
const HOP_LIMIT_OF_ROUTE: &str = "for RoCE v2, the kernel takes the hop limit from the route to the peer";
const NO_PARENT_DOMAIN: &str = "rxe has no parent domains";
const FOREIGN_MEMORY_NOT_POSTED: &str =
    "unless the library of a device checks every key, Dataplane posts only elements inside buffers of the domain";
const FOREIGN_HANDLE_NOT_POSTED: &str = "Dataplane's provider `verbs` checks the protection domain of the handle";

const DIFFERENCES: &[Difference] = &[
    Difference {
        cases: &["statuses.rc_short_receive"],
        applies_to: Rxe,
        standard: "a send 1 REM_INV_REQ_ERR",
        instead: "a send 1 REM_OP_ERR",
        reason: NO_LENGTH_ERROR,
    },
    Difference {
        cases: &["statuses.rc_short_receive", "statuses.uc_short_receive", "statuses.ud_short_receive"],
        applies_to: Rxe,
        standard: "b receive 1 LOC_LEN_ERR",
        instead: "b receive 1 LOC_QP_OP_ERR",
        reason: NO_LENGTH_ERROR,
    },
    Difference {
        cases: &["statuses.rc_receive_bad_lkey", "statuses.rc_receive_without_local_write"],
        applies_to: Rxe,
        standard: "b receive 1 LOC_PROT_ERR",
        instead: "b receive 1 LOC_QP_OP_ERR",
        reason: LOCAL_MEMORY,
    },
    Difference {
        cases: &["statuses.rc_send_bad_lkey", "statuses.rc_write_bad_lkey", "statuses.rc_send_of_another_domain"],
        applies_to: Rxe,
        standard: "a send 1 LOC_PROT_ERR",
        instead: "a send 1 LOC_QP_OP_ERR",
        reason: LOCAL_MEMORY,
    },
    Difference {
        cases: &["statuses.rc_error_flushes_later_requests", "memory.deregistered"],
        applies_to: Rxe,
        standard: "a send 2 LOC_PROT_ERR",
        instead: "a send 2 LOC_QP_OP_ERR",
        reason: LOCAL_MEMORY,
    },
    Difference {
        cases: &[
            "statuses.rc_write_bad_rkey",
            "statuses.rc_write_out_of_bounds",
            "statuses.rc_write_without_permission",
            "statuses.rc_read_without_permission",
            "statuses.rc_write_of_another_domain",
        ],
        applies_to: Rxe,
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
        applies_to: Rxe,
        standard: "b IBV_EVENT_QP_REQ_ERR",
        instead: "",
        reason: NO_EVENT,
    },
    Difference {
        cases: &["shared.error_keeps_shared_receives"],
        applies_to: Rxe,
        standard: "last WQE event: true",
        instead: "last WQE event: false",
        reason: "rxe never raises QP_LAST_WQE_REACHED",
    },
    Difference {
        cases: &["statuses.rc_read_unequal_mtu"],
        applies_to: Rxe,
        standard: "a send 1 BAD_RESP_ERR",
        instead: "a send 1 RETRY_EXC_ERR",
        reason: "rxe requests a response again if the response has more packets than rxe expects",
    },
    Difference {
        cases: &["statuses.rc_read_unequal_mtu"],
        applies_to: Rxe,
        standard: "a send 1 BAD_RESP_ERR",
        instead: "a send 1 RDMA_READ",
        reason: "rxe does not check the lengths of the packets of a response",
    },
    Difference {
        cases: &["statuses.rc_read_unequal_mtu"],
        applies_to: Rxe,
        standard: "MTU codes 1 and 3: a ERR, b RTS",
        instead: "MTU codes 1 and 3: a RTS, b RTS",
        reason: "rxe does not check the lengths of the packets of a response",
    },
    Difference {
        cases: &["statuses.rc_read_max_rd_atomic_0"],
        applies_to: Verbs,
        standard: "posted: ok",
        instead: "posted: EINVAL after 0",
        reason: READ_NOT_POSTED,
    },
    Difference {
        cases: &["statuses.rc_read_max_rd_atomic_0"],
        applies_to: SoftAsRxe,
        standard: "a send 1 LOC_QP_OP_ERR",
        instead: "",
        reason: "on rxe the read never completes",
    },
    Difference {
        cases: &["statuses.rc_read_max_rd_atomic_0"],
        applies_to: Verbs,
        standard: "a send 1 LOC_QP_OP_ERR",
        instead: "",
        reason: READ_NOT_POSTED,
    },
    Difference {
        cases: &["statuses.rc_read_max_rd_atomic_0"],
        applies_to: SoftAsRxe,
        standard: "a ERR, b RTS",
        instead: "a RTS, b RTS",
        reason: "on rxe the read never completes",
    },
    Difference {
        cases: &["statuses.rc_read_max_rd_atomic_0"],
        applies_to: Verbs,
        standard: "a ERR, b RTS",
        instead: "a RTS, b RTS",
        reason: READ_NOT_POSTED,
    },
    Difference {
        cases: &["statuses.rc_send_with_invalidate_bad_rkey"],
        applies_to: Rxe,
        standard: "a send 1 REM_ACCESS_ERR",
        instead: "a send 1 SEND",
        reason: "rxe acknowledges the send before it checks the key",
    },
    Difference {
        cases: &["statuses.ud_too_long"],
        applies_to: Verbs,
        standard: "posted: ok",
        instead: "posted: EINVAL after 0",
        reason: TOO_LONG_NOT_POSTED,
    },
    Difference {
        cases: &["statuses.ud_too_long"],
        applies_to: Verbs,
        standard: "a send 1 LOC_LEN_ERR",
        instead: "",
        reason: TOO_LONG_NOT_POSTED,
    },
    Difference {
        cases: &["statuses.ud_too_long"],
        applies_to: SoftAsRxe,
        standard: "a send 1 LOC_LEN_ERR",
        instead: "a send 1 SEND",
        reason: TOO_LONG_NOT_SENT,
    },
    Difference {
        cases: &["statuses.ud_too_long"],
        applies_to: SoftAsRxe,
        standard: "a SQE, b RTS",
        instead: "a RTS, b RTS",
        reason: TOO_LONG_NOT_SENT,
    },
    Difference {
        cases: &["statuses.ud_too_long"],
        applies_to: Verbs,
        standard: "a SQE, b RTS",
        instead: "a RTS, b RTS",
        reason: TOO_LONG_NOT_POSTED,
    },
    Difference {
        cases: &["states.uc_table"],
        applies_to: Verbs,
        standard: "tried more than 300 state changes",
        instead: "SQD>SQD with AttributeMask(STATE | ACCESS_FLAGS | PKEY_INDEX | AV): allowed by the table, got EINVAL
                  tried more than 300 state changes",
        reason: "if `AV` is set, the kernel also sets `PORT`, which SQD>SQD of a UC queue pair does not allow",
    },
    Difference {
        cases: &["statuses.reset_by_user"],
        applies_to: Rxe,
        standard: "a send 1 SEND",
        instead: "a send 1 SEND
                  b receive 1 RECV 20 bytes",
        reason: "on rxe, completions stay in their queue when the queue pair is reset",
    },
    Difference {
        cases: &["opcodes.uc", "opcodes.ud"],
        applies_to: Rxe,
        standard: "RDMA_READ: LOC_QP_OP_ERR, SQE",
        instead: "RDMA_READ: LOC_QP_OP_ERR, ERR",
        reason: NO_SQE,
    },
    Difference {
        cases: &["opcodes.uc", "opcodes.ud"],
        applies_to: Rxe,
        standard: "ATOMIC_CMP_AND_SWP: LOC_QP_OP_ERR, SQE",
        instead: "ATOMIC_CMP_AND_SWP: LOC_QP_OP_ERR, ERR",
        reason: NO_SQE,
    },
    Difference {
        cases: &["opcodes.uc", "opcodes.ud"],
        applies_to: Rxe,
        standard: "ATOMIC_FETCH_AND_ADD: LOC_QP_OP_ERR, SQE",
        instead: "ATOMIC_FETCH_AND_ADD: LOC_QP_OP_ERR, ERR",
        reason: NO_SQE,
    },
    Difference {
        cases: &["opcodes.ud"],
        applies_to: Rxe,
        standard: "RDMA_WRITE: LOC_QP_OP_ERR, SQE",
        instead: "RDMA_WRITE: LOC_QP_OP_ERR, ERR",
        reason: NO_SQE,
    },
    Difference {
        cases: &["opcodes.ud"],
        applies_to: Rxe,
        standard: "RDMA_WRITE_WITH_IMM: LOC_QP_OP_ERR, SQE",
        instead: "RDMA_WRITE_WITH_IMM: LOC_QP_OP_ERR, ERR",
        reason: NO_SQE,
    },
    Difference {
        cases: &["posting.unsignalled_fills_the_queue"],
        applies_to: Rxe,
        standard: "accepted: 1 times the depth",
        instead: "accepted: 4 times the depth",
        reason: "rxe frees the queue entry of a request after its execution, even if no completion was polled",
    },
    Difference {
        cases: &["data.atomic_not_aligned", "rdma_core.test_atomic_non_aligned_addr"],
        applies_to: Rxe,
        standard: "a send 1 REM_INV_REQ_ERR",
        instead: "posted: EINVAL after 0",
        reason: ALIGNMENT_CHECKED,
    },
    Difference {
        cases: &["data.atomic_not_aligned", "rdma_core.test_atomic_non_aligned_addr"],
        applies_to: Rxe,
        standard: "was 0xeeeeeeeeeeeeeeee, is 0x0",
        instead: "",
        reason: ALIGNMENT_CHECKED,
    },
    Difference {
        cases: &["completions.overrun"],
        applies_to: SoftAsRxe,
        standard: "queue can be polled: false",
        instead: "queue can be polled: true",
        reason: "rxe drops completions that do not fit, raises an event, and continues",
    },
    Difference {
        cases: &["completions.overrun"],
        applies_to: Verbs,
        standard: "queue can be polled: false",
        instead: "queue can be polled: true",
        reason: "the libraries of rxe and mlx5 report an overrun only as an event",
    },
    Difference {
        cases: &[
            "memory.window_1_bounds",
            "memory.window_2_bounds",
            "rdma_core.test_mw_type1",
            "rdma_core.test_mw_type2",
        ],
        applies_to: KernelRxe,
        standard: "a send 3 REM_ACCESS_ERR",
        instead: "a send 3 RDMA_WRITE",
        reason: "rxe checks accesses through a window against the bounds of the region, not of the window",
    },
    Difference {
        cases: &["datagrams.own_qkey"],
        applies_to: KernelRxe,
        standard: "b receive 1 RECV 50 bytes GRH",
        instead: "",
        reason: "if the top bit of the request's Q_Key is set, the device must send the Q_Key of the queue pair, but \
                 rxe sends the Q_Key of the request, so the peer drops the datagram",
    },
    Difference {
        cases: &["datagrams.own_qkey"],
        applies_to: KernelRxe,
        standard: "b receive 2 RECV 50 bytes GRH",
        instead: "b receive 1 RECV 50 bytes GRH",
        reason: "the peer drops the first datagram, so the second datagram takes the first receive",
    },
    Difference {
        cases: &["datagrams.handle_of_another_domain"],
        applies_to: Verbs,
        standard: "posted: ok",
        instead: "posted: EINVAL after 0",
        reason: FOREIGN_HANDLE_NOT_POSTED,
    },
    Difference {
        cases: &["datagrams.handle_of_another_domain"],
        applies_to: Verbs,
        standard: "a send 1 LOC_QP_OP_ERR",
        instead: "",
        reason: FOREIGN_HANDLE_NOT_POSTED,
    },
    Difference {
        cases: &["completions.parent_domain"],
        applies_to: Rxe,
        standard: "parent: ok",
        instead: "parent: EOPNOTSUPP",
        reason: NO_PARENT_DOMAIN,
    },
    Difference {
        cases: &["completions.parent_domain"],
        applies_to: Rxe,
        standard: "parent of a parent: EINVAL",
        instead: "",
        reason: NO_PARENT_DOMAIN,
    },
    Difference {
        cases: &["completions.parent_domain"],
        applies_to: Rxe,
        standard: "classic: EOPNOTSUPP",
        instead: "",
        reason: NO_PARENT_DOMAIN,
    },
    Difference {
        cases: &["completions.parent_domain"],
        applies_to: Rxe,
        standard: "a send 1 SEND",
        instead: "",
        reason: NO_PARENT_DOMAIN,
    },
    Difference {
        cases: &["completions.parent_domain"],
        applies_to: Rxe,
        standard: "a receive 1 RECV 20 bytes",
        instead: "",
        reason: NO_PARENT_DOMAIN,
    },
    Difference {
        cases: &["completions.parent_domain"],
        applies_to: Rxe,
        standard: "b send 1 SEND",
        instead: "",
        reason: NO_PARENT_DOMAIN,
    },
    Difference {
        cases: &["completions.parent_domain"],
        applies_to: Rxe,
        standard: "b receive 1 RECV 20 bytes",
        instead: "",
        reason: NO_PARENT_DOMAIN,
    },
    Difference {
        cases: &["handshake.defaults"],
        applies_to: RoceV2,
        standard: "hop limit 255",
        instead: "hop limit 64",
        reason: HOP_LIMIT_OF_ROUTE,
    },
    Difference {
        cases: &["handshake.defaults"],
        applies_to: RoceV2,
        standard: "hop limit 255",
        instead: "hop limit 64",
        reason: HOP_LIMIT_OF_ROUTE,
    },
    Difference {
        cases: &["handshake.parameters"],
        applies_to: RoceV2,
        standard: "hop limit 17",
        instead: "hop limit 64",
        reason: HOP_LIMIT_OF_ROUTE,
    },
    Difference {
        cases: &["handshake.parameters"],
        applies_to: RoceV2,
        standard: "hop limit 17",
        instead: "hop limit 64",
        reason: HOP_LIMIT_OF_ROUTE,
    },
    Difference {
        cases: &["statuses.rc_send_of_another_domain", "statuses.rc_send_out_of_bounds", "memory.deregistered"],
        applies_to: UncheckedKeys,
        standard: "posted: ok",
        instead: "posted: EFAULT after 0",
        reason: FOREIGN_MEMORY_NOT_POSTED,
    },
    Difference {
        cases: &["statuses.rc_send_of_another_domain", "statuses.rc_send_out_of_bounds"],
        applies_to: UncheckedKeys,
        standard: "a send 1 LOC_PROT_ERR",
        instead: "",
        reason: FOREIGN_MEMORY_NOT_POSTED,
    },
    Difference {
        cases: &["statuses.rc_send_of_another_domain", "statuses.rc_send_out_of_bounds"],
        applies_to: UncheckedKeys,
        standard: "a ERR, b RTS",
        instead: "a RTS, b RTS",
        reason: FOREIGN_MEMORY_NOT_POSTED,
    },
    Difference {
        cases: &["memory.deregistered"],
        applies_to: UncheckedKeys,
        standard: "a send 2 LOC_PROT_ERR",
        instead: "",
        reason: FOREIGN_MEMORY_NOT_POSTED,
    },
];

/// Returns the service level of a path for the log. `returned` is the service level that the device returns, and `set`
/// is the service level that was set.
///
/// On Ethernet, the service level becomes the priority of the frames, and some drivers do not return it. rxe does not
/// store the service level, and mlx5 stores only the priority (`mlx5_set_path`). The value 0 of a kernel device on
/// Ethernet therefore counts as the set value.
pub(crate) fn service_level(bed: BedProperties, returned: u8, set: u8) -> u8 {
    if bed.kernel && bed.link_layer == LinkLayer::Ethernet && returned == 0 { set } else { returned }
}

/// Returns whether the log contains the GRH flag of datagrams. See the start of this file.
pub(crate) fn logs_grh(link_layer: LinkLayer) -> bool {
    matches!(link_layer, LinkLayer::Ethernet | LinkLayer::InfiniBand)
}

/// Returns the log lines that a device must report in a case. `standard` has the lines that the standard requires, and
/// each difference that applies to the case and the device replaces one of these lines.
///
/// # Errors
/// Returns an error if `standard` does not have the line that a difference replaces.
pub(crate) fn apply(case: &str, bed: BedProperties, standard: &[String]) -> Result<Vec<String>, String> {
    let mut lines: Vec<Option<String>> = standard.iter().cloned().map(Some).collect();
    let mut instead: Vec<Vec<String>> = vec![Vec::new(); lines.len()];
    let is_case = |it: &&Difference| it.cases.contains(&case) && it.applies_to.matches(bed);
    for it in DIFFERENCES.iter().filter(is_case) {
        // Several lines may be equal. Each difference replaces the first equal line that is not replaced yet, so a
        // difference that is listed twice replaces two lines.
        let at = lines.iter().position(|line| line.as_deref() == Some(it.standard));
        let at = at.ok_or_else(|| {
            format!("the required log has no line `{}`, which a difference replaces ({})", it.standard, it.reason)
        })?;
        lines[at] = None;
        instead[at] = it.instead.lines().map(|line| line.trim().to_owned()).filter(|it| !it.is_empty()).collect();
    }
    let replaced = lines.into_iter().zip(instead);
    let lines = replaced.flat_map(|(line, instead)| line.map_or(instead, |line| vec![line]));
    let logged = |line: String| match logs_grh(bed.link_layer) {
        true => line,
        false => line.replace(" GRH|", " ").trim_end_matches(" GRH").to_owned(),
    };
    Ok(lines.map(logged).collect())
}

/// Checks that every difference names an existing case.
pub(crate) fn check_names(cases: &[&str]) {
    for it in DIFFERENCES {
        for case in it.cases {
            assert!(
                cases.contains(case),
                "a difference names an unknown case: {case} ({:?}, {})",
                it.applies_to,
                it.reason
            );
        }
    }
}

/// Checks that a case is skipped only if a device does not support a type of queue pairs. If the probe of the type
/// failed for another reason, the case must fail.
pub(crate) fn check_missing_types() {
    for (why, skipped) in [
        (None, Some(libc::EOPNOTSUPP)),
        (Some("the device uses iWARP"), Some(libc::EOPNOTSUPP)),
        (Some("ibv_create_qp failed: Operation not supported (os error 95)"), Some(libc::EOPNOTSUPP)),
        (Some("ibv_create_qp failed: Invalid argument (os error 22)"), Some(libc::EINVAL)),
        (Some("ibv_create_qp failed: Cannot allocate memory (os error 12); help: raise the limit"), None),
        (Some("ibv_create_qp failed: Operation not permitted (os error 1)"), None),
    ] {
        match (lacks_type(QpType::Rc, why), skipped) {
            (Stop::Skip(what, errno), Some(wanted)) => {
                assert_eq!((&*what, errno), ("IBV_QPT_RC queue pairs", wanted), "{why:?}");
            }
            (Stop::Fail(text), None) => assert!(text.contains(why.unwrap_or_default()), "{text}"),
            (got, _) => panic!("{why:?}: {got:?}"),
        }
    }
}

/// Checks that the differences of rxe do not apply to a real NIC, which must follow the standard.
pub(crate) fn check_other_nics() {
    let nic = BedProperties {
        profile: Profile::Spec,
        kernel: true,
        link_layer: LinkLayer::Ethernet,
        roce_v2: false,
        checks_every_key: true,
    };
    let rxe = BedProperties { profile: Profile::Rxe, roce_v2: true, ..nic };
    for (case, line) in [
        ("memory.window_1_bounds", "a send 3 REM_ACCESS_ERR"),
        ("rdma_core.test_mw_type2", "a send 3 REM_ACCESS_ERR"),
        ("datagrams.own_qkey", "b receive 1 RECV 50 bytes GRH\nb receive 2 RECV 50 bytes GRH"),
    ] {
        let standard: Vec<String> = line.lines().map(str::to_owned).collect();
        assert_eq!(apply(case, nic, &standard), Ok(standard.clone()), "{case}");
        assert_ne!(apply(case, rxe, &standard), Ok(standard), "{case}");
    }
    // The kernel takes the hop limit from the route only for RoCE v2.
    let limits = ["hop limit 255".to_owned(), "hop limit 255".to_owned()];
    assert_eq!(apply("handshake.defaults", nic, &limits), Ok(limits.to_vec()));
    let v2 = apply("handshake.defaults", BedProperties { roce_v2: true, ..nic }, &limits);
    assert_eq!(v2, Ok(vec!["hop limit 64".to_owned(); 2]));
    // mlx5 returns no service level on Ethernet. InfiniBand and the software device must return it.
    let infiniband = BedProperties { link_layer: LinkLayer::InfiniBand, ..nic };
    let soft = BedProperties { kernel: false, ..nic };
    assert_eq!([nic, infiniband, soft].map(|bed| service_level(bed, 0, 5)), [5, 0, 0]);
    assert_eq!(service_level(nic, 4, 5), 4);
    // The library of efa sets no GRH flag.
    let lines = ["b receive 1 RECV 47 bytes GRH", "b receive 2 RECV 49 bytes GRH|WITH_IMM imm 0x7"].map(str::to_owned);
    let without = ["b receive 1 RECV 47 bytes", "b receive 2 RECV 49 bytes WITH_IMM imm 0x7"].map(str::to_owned);
    let efa = BedProperties { link_layer: LinkLayer::Unspecified, ..nic };
    assert_eq!(apply("data.ud_lengths", efa, &lines), Ok(without.to_vec()));
    assert_eq!(apply("data.ud_lengths", infiniband, &lines), Ok(lines.to_vec()));
    // efa refuses to register memory with the access flags for remote atomics or memory windows. An endpoint of type UD
    // therefore requests only `LOCAL_WRITE`.
    assert_eq!(EndpointSpec::new(QpType::Ud).access, Access::LOCAL_WRITE);
}
