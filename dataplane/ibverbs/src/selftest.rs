//! Self-test of batch polling. The test also works if the version of libibverbs is unknown.
//!
//! When a queue pair changes to ERR, the device flushes the posted requests, even without a link. The test posts a few
//! receives, flushes the receives and polls their completions in a batch. Each receive must complete once and in order,
//! and the completion queue must then be empty. The test repeats these steps a few times.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::context::Context;
use super::cq::{self, VerbsCq};
use super::domain::VerbsPd;
use super::qp::VerbsQp;
use dataplane_core::error::VerbError;
use dataplane_core::verbs::{
    CompletionQueue, Completions, CqApi, CqSpec, ProtectionDomain, QpAttributes, QpCaps, QpSpec, QpState, QpType,
    QueuePair, RUN, RecvRequest,
};

/// The result of the self-test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SelfTest {
    /// Every completion arrived once and in order.
    Passed,
    /// Completions were lost, repeated or out of order. Contains a description.
    Failed(String),
    /// The test could not run. Contains the reason.
    Unknown(String),
}

/// Number of receives per round.
const BATCH: u64 = 3;
/// Number of rounds.
const ROUNDS: u64 = 4;
/// A working device flushes requests immediately. Completions that do not arrive within this time count as lost.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Runs the self-test.
pub(super) fn run(context: &Arc<Context>) -> SelfTest {
    match prepare(context) {
        Ok((qp, cq)) => attempt(qp, cq),
        Err(error) => SelfTest::Unknown(error.to_string()),
    }
}

/// Creates a queue pair, and a completion queue that is polled in batches.
fn prepare(context: &Arc<Context>) -> Result<(VerbsQp, VerbsCq), VerbError> {
    let pd = VerbsPd::alloc(context)?;
    let spec = CqSpec { depth: 4 * BATCH as u32, api: CqApi::Auto, ..CqSpec::default() };
    let (cq, granted) = cq::create(context, &spec, None, None, || (CqApi::Extended, None))?;
    if granted.api != CqApi::Extended {
        return Err(VerbError::new("ibv_create_cq_ex", libc::EOPNOTSUPP));
    }
    let caps = QpCaps { send_depth: 1, recv_depth: BATCH as u32, send_sges: 1, recv_sges: 1, inline: 0 };
    // Try both queue pair types: some devices do not support datagrams, and some support only datagrams.
    let make = |kind| pd.create_qp(&QpSpec::new(kind, caps), &cq, &cq, None);
    let qp = make(QpType::Rc).or_else(|_| make(QpType::Ud))?;
    Ok((qp, cq))
}

/// Resets the queue pair, posts receives and moves the queue pair to ERR, which flushes the receives.
#[allow(unsafe_code, reason = "posting is unsafe, but these requests use no memory")]
fn flush(qp: &mut VerbsQp, wr_ids: &[u64]) -> Result<(), VerbError> {
    let reset = QpAttributes::to(QpState::Reset);
    let init = QpAttributes::init(qp.kind(), 1, 0);
    for (attributes, mask) in [reset, init] {
        qp.modify(&attributes, mask)?;
    }
    let requests: Vec<_> = wr_ids.iter().map(|&wr_id| RecvRequest { wr_id, sges: &[] }).collect();
    // SAFETY: the requests refer to no memory.
    unsafe { qp.post_recv(&requests) }.map_err(|refused| refused.error)?;
    let (attributes, mask) = QpAttributes::to(QpState::Err);
    qp.modify(&attributes, mask)
}

fn attempt(mut qp: VerbsQp, mut cq: VerbsCq) -> SelfTest {
    let mut run = Completions::new();
    for round in 0..ROUNDS {
        let expected: Vec<u64> = (round * BATCH..(round + 1) * BATCH).collect();
        if let Err(error) = flush(&mut qp, &expected) {
            return SelfTest::Unknown(error.to_string());
        }
        let mut seen = Vec::new();
        let until = Instant::now() + TIMEOUT;
        while seen.len() < expected.len() && Instant::now() < until {
            match cq.poll_run(&mut run, RUN) {
                Ok(0) => thread::yield_now(),
                Ok(n) => seen.extend_from_slice(&run.wr_id[..n]),
                Err(error) => return SelfTest::Failed(error.to_string()),
            }
        }
        // A working device returns no further completion.
        match cq.poll_run(&mut run, RUN) {
            Ok(n) => seen.extend_from_slice(&run.wr_id[..n]),
            Err(error) => return SelfTest::Failed(error.to_string()),
        }
        if seen != expected {
            let shown = &seen[..seen.len().min(8)];
            return SelfTest::Failed(format!(
                "a batch poll returned {} completions for {} requests: {shown:?} instead of {expected:?}",
                seen.len(),
                expected.len()
            ));
        }
    }
    SelfTest::Passed
}
