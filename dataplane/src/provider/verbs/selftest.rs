//! Whether completions can be polled in batches: tried, whatever the version.
//!
//! A queue pair that is stopped gives back what was posted to it, on every device and without a wire. So a few receives
//! are posted, flushed, and polled in a batch; after that there must be nothing, and the next few must come in order.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::context::Context;
use super::cq::{self, VerbsCq};
use super::domain::VerbsPd;
use super::qp::VerbsQp;
use crate::error::VerbError;
use crate::provider::{
    CompletionQueue, Completions, CqApi, CqSpec, ProtectionDomain, QpAttributes, QpCaps, QpSpec, QpState, QpType,
    QueuePair, RUN, RecvRequest,
};

/// What became of the test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SelfTest {
    /// Every completion came once, in order.
    Passed,
    /// They did not: how.
    Failed(String),
    /// It could not be carried out: why.
    Unknown(String),
}

/// Receives posted at a time.
const BATCH: u64 = 3;
/// How often.
const ROUNDS: u64 = 4;
/// A device flushes at once. One that does not in this time has lost something.
const PATIENCE: Duration = Duration::from_secs(2);

/// Tries it.
pub(super) fn run(context: &Arc<Context>) -> SelfTest {
    match prepare(context) {
        Ok((qp, cq)) => attempt(qp, cq),
        Err(error) => SelfTest::Unknown(error.to_string()),
    }
}

/// A queue pair and the queue that it reports to, which is polled in batches.
fn prepare(context: &Arc<Context>) -> Result<(VerbsQp, VerbsCq), VerbError> {
    let pd = VerbsPd::alloc(context)?;
    let spec = CqSpec { depth: 4 * BATCH as u32, api: CqApi::Auto, ..CqSpec::default() };
    let (cq, granted) = cq::create(context, &spec, None, || (CqApi::Extended, None))?;
    if granted.api != CqApi::Extended {
        return Err(VerbError::new("ibv_create_cq_ex", libc::EOPNOTSUPP));
    }
    let caps = QpCaps { send_depth: 1, recv_depth: BATCH as u32, send_sges: 1, recv_sges: 1, inline: 0 };
    // Some devices have no datagrams, some nothing else.
    let make = |kind| pd.create_qp(&QpSpec::new(kind, caps), &cq, &cq, None);
    let qp = make(QpType::Rc).or_else(|_| make(QpType::Ud))?;
    Ok((qp, cq))
}

/// Posts receives and stops the queue pair, from whatever state.
#[allow(unsafe_code, reason = "posting is unsafe; what is posted here has no memory")]
fn flush(qp: &mut VerbsQp, wr_ids: &[u64]) -> Result<(), VerbError> {
    let reset = QpAttributes::to(QpState::Reset);
    let init = QpAttributes::init(qp.kind(), 1, 0);
    for (attributes, mask) in [reset, init] {
        qp.modify(&attributes, mask)?;
    }
    let requests: Vec<_> = wr_ids.iter().map(|&wr_id| RecvRequest { wr_id, sges: &[] }).collect();
    // SAFETY: the requests name no memory.
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
        let until = Instant::now() + PATIENCE;
        while seen.len() < expected.len() && Instant::now() < until {
            match cq.poll_run(&mut run, RUN) {
                Ok(0) => thread::yield_now(),
                Ok(n) => seen.extend_from_slice(&run.wr_id[..n]),
                Err(error) => return SelfTest::Failed(error.to_string()),
            }
        }
        // There is nothing more.
        match cq.poll_run(&mut run, RUN) {
            Ok(n) => seen.extend_from_slice(&run.wr_id[..n]),
            Err(error) => return SelfTest::Failed(error.to_string()),
        }
        if seen != expected {
            let shown = &seen[..seen.len().min(8)];
            return SelfTest::Failed(format!(
                "polled in a batch, {} completions came for {} requests: {shown:?} and not {expected:?}",
                seen.len(),
                expected.len()
            ));
        }
    }
    SelfTest::Passed
}
