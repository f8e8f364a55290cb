//! Cases for the operations that each type of queue pair supports.

use dataplane::verbs::{Capability, QpType, RawDevice, SendOp, WrOpcode};

use crate::Trial;
use crate::bed::{Connection, Pair};
use crate::bed::{EndpointSpec, Outcome, PairCq, Stop, post_result, remote, status_name};

/// The capability that a device lacks if the device refuses to post an operation that the type of the queue pair does
/// not support. Other devices accept the operation, and report an error in its completion.
pub(crate) const ERROR_COMPLETIONS: &str = "error completions for unsupported operations";

/// Posts every operation once, each on a new pair. Posts no atomics if a device does not support atomics. Logs the
/// completion and the state of the requester, and the completion of the peer's receive.
///
/// Some libraries, for example the library of hns, refuse to post an operation that the type does not support. The log
/// then has the line that the standard requires. Returns `true` if a post was refused for this reason.
fn matrix<D: RawDevice>(t: &mut Trial<'_, D>, kind: QpType) -> Outcome<bool> {
    let mut refuses_posts = false;
    let has_atomics = t.has(Capability::Atomic);
    for opcode in WrOpcode::NAMED {
        let is_atomic = matches!(opcode, WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd);
        if is_atomic && !has_atomics {
            continue;
        }
        let mut pair = Pair::connected(t.bed, EndpointSpec::new(kind), Connection::default(), Connection::default())?;
        let far = remote(&pair.b, 1024);
        let op = match opcode {
            WrOpcode::Send => SendOp::Send,
            WrOpcode::SendWithImm => SendOp::SendWithImm(1),
            WrOpcode::RdmaWrite => SendOp::RdmaWrite(far),
            WrOpcode::RdmaWriteWithImm => SendOp::RdmaWriteWithImm(far, 1),
            WrOpcode::RdmaRead => SendOp::RdmaRead(far),
            WrOpcode::AtomicCmpAndSwp => SendOp::CompareSwap { remote: far, compare: 0, swap: 1 },
            WrOpcode::AtomicFetchAndAdd => SendOp::FetchAdd { remote: far, add: 1 },
            // The cases in `memory.rs` test the operations that invalidate a key. No device of this test supports the
            // remaining operations.
            _ => continue,
        };
        pair.b.recv(1, 0..100)?;
        let sges = [pair.a.buffer.sge(0..8)];
        let posted = pair.a.post(1, op, &sges);
        let name = opcode.name().trim_start_matches("IBV_WR_");
        let is_supported = match kind {
            QpType::Rc => true,
            QpType::Uc => !is_atomic && *opcode != WrOpcode::RdmaRead,
            _ => matches!(opcode, WrOpcode::Send | WrOpcode::SendWithImm),
        };
        if !is_supported && posted.as_ref().is_err_and(|it| matches!(it.error.errno, libc::EINVAL | libc::EOPNOTSUPP)) {
            refuses_posts = true;
            t.log(format!("{name}: LOC_QP_OP_ERR, SQE"));
            continue;
        }
        if posted.is_err() {
            t.log(format!("{name}: {}", post_result(posted)));
            continue;
        }
        pair.wait(&[(PairCq::ASent, 1)])?;
        let completed = pair.a.sent.first().map_or("nothing".to_owned(), |it| match it.opcode() {
            Some(opcode) => opcode.name().trim_start_matches("IBV_WC_").to_owned(),
            None => status_name(it.status),
        });
        let receives = matches!(opcode, WrOpcode::Send | WrOpcode::SendWithImm | WrOpcode::RdmaWriteWithImm);
        if pair.a.state()? == "RTS" && receives {
            pair.wait(&[(PairCq::BReceived, 1)])?;
        }
        let received = pair.b.received.first().and_then(|it| it.opcode());
        let received =
            received.map_or(String::new(), |it| format!(", peer {}", it.name().trim_start_matches("IBV_WC_")));
        t.log(format!("{name}: {completed}, {}{received}", pair.a.state()?));
    }
    Ok(refuses_posts)
}

/// Posts every operation on queue pairs of type `kind`, and compares the log with `lines`. Leaves out the lines about
/// atomics if a device does not support atomics.
fn expect<D: RawDevice>(t: &mut Trial<'_, D>, kind: QpType, lines: &str) -> Outcome {
    let refuses_posts = matrix(t, kind)?;
    let has_atomics = t.has(Capability::Atomic);
    let lines = lines.lines().filter(|line| has_atomics || !line.trim_start().starts_with("ATOMIC_"));
    t.expect(&lines.collect::<Vec<_>>().join("\n"))?;
    match refuses_posts {
        true => Err(Stop::Skip(ERROR_COMPLETIONS.to_owned(), libc::EINVAL)),
        false => Ok(()),
    }
}

pub(crate) fn rc<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    expect(
        t,
        QpType::Rc,
        "RDMA_WRITE: RDMA_WRITE, RTS
         RDMA_WRITE_WITH_IMM: RDMA_WRITE, RTS, peer RECV_RDMA_WITH_IMM
         SEND: SEND, RTS, peer RECV
         SEND_WITH_IMM: SEND, RTS, peer RECV
         RDMA_READ: RDMA_READ, RTS
         ATOMIC_CMP_AND_SWP: COMP_SWAP, RTS
         ATOMIC_FETCH_AND_ADD: FETCH_ADD, RTS",
    )
}

pub(crate) fn uc<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    expect(
        t,
        QpType::Uc,
        "RDMA_WRITE: RDMA_WRITE, RTS
         RDMA_WRITE_WITH_IMM: RDMA_WRITE, RTS, peer RECV_RDMA_WITH_IMM
         SEND: SEND, RTS, peer RECV
         SEND_WITH_IMM: SEND, RTS, peer RECV
         RDMA_READ: LOC_QP_OP_ERR, SQE
         ATOMIC_CMP_AND_SWP: LOC_QP_OP_ERR, SQE
         ATOMIC_FETCH_AND_ADD: LOC_QP_OP_ERR, SQE",
    )
}

pub(crate) fn ud<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    expect(
        t,
        QpType::Ud,
        "RDMA_WRITE: LOC_QP_OP_ERR, SQE
         RDMA_WRITE_WITH_IMM: LOC_QP_OP_ERR, SQE
         SEND: SEND, RTS, peer RECV
         SEND_WITH_IMM: SEND, RTS, peer RECV
         RDMA_READ: LOC_QP_OP_ERR, SQE
         ATOMIC_CMP_AND_SWP: LOC_QP_OP_ERR, SQE
         ATOMIC_FETCH_AND_ADD: LOC_QP_OP_ERR, SQE",
    )
}
