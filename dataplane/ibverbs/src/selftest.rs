//! Self-test of batch polling. The quirks list the versions of libibverbs with defects in batch polling. The test finds
//! such defects even if the version of libibverbs is unknown.
//!
//! When a queue pair changes to ERR, the device flushes the posted requests, even without a link. The test posts a few
//! receives, flushes the receives and polls their completions in a batch. Each receive must complete once and in order,
//! and the completion queue must then be empty. The test repeats these steps a few times. Each time, the test creates a
//! new queue pair, because irdma refuses to use a queue pair again after a reset.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::context::Context;
use super::cq::{self, VerbsCq};
use super::domain::{VerbsMr, VerbsPd};
use super::qp::VerbsQp;
use dataplane_core::error::VerbError;
use dataplane_core::mem::{PageKind, Region, RegionSpec};
use dataplane_core::verbs::{
    Access, CompletionQueue, Completions, CqApi, CqSpec, MAX_RUN, MemoryRegion, ProtectionDomain, QpAttributes, QpCaps,
    QpSpec, QpState, QpType, QueuePair, RecvRequest, Sge,
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

/// The number of receives per round.
const BATCH: u64 = 3;
/// The number of rounds.
const ROUNDS: u64 = 4;
/// A working device flushes requests immediately. Completions that do not arrive within this time count as lost.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The objects of the test, which are dropped in this order.
struct Bench {
    cq: VerbsCq,
    mr: VerbsMr,
    pd: VerbsPd,
}

/// Runs the self-test.
pub(super) fn run(context: &Arc<Context>) -> SelfTest {
    match Bench::new(context) {
        Ok(mut bench) => bench.attempt(),
        Err(error) => SelfTest::Unknown(error.to_string()),
    }
}

impl Bench {
    /// Creates a completion queue that is polled in batches, and memory for the receives.
    fn new(context: &Arc<Context>) -> Result<Self, VerbError> {
        let pd = VerbsPd::alloc(context)?;
        let spec = CqSpec { depth: 4 * BATCH as u32, api: CqApi::Auto, ..CqSpec::default() };
        let (cq, granted) = cq::create(context, &spec, None, None, || (CqApi::Extended, None))?;
        if granted.api != CqApi::Extended {
            return Err(VerbError::new("ibv_create_cq_ex", libc::EOPNOTSUPP));
        }
        let spec = RegionSpec { bytes: 1, pages: PageKind::Normal, strict: false, node: None };
        let (region, _) = Region::allocate(spec).map_err(|_| VerbError::new("mmap", libc::ENOMEM))?;
        let mr = pd.register(Arc::new(region), Access::LOCAL_WRITE)?;
        Ok(Self { cq, mr, pd })
    }

    fn create_qp(&self) -> Result<VerbsQp, VerbError> {
        let caps = QpCaps { send_depth: 1, recv_depth: BATCH as u32, send_sges: 1, recv_sges: 1, inline: 0 };
        // Try both queue pair types: some devices do not support datagrams, and some support only datagrams.
        let make = |kind| self.pd.create_qp(&QpSpec::new(kind, caps), &self.cq, &self.cq, None);
        make(QpType::Rc).or_else(|_| make(QpType::Ud))
    }

    /// Creates a queue pair, posts receives and moves the queue pair to ERR, which flushes the receives. Each receive
    /// has an element, because efa never completes a receive without elements.
    #[allow(unsafe_code, reason = "posting is unsafe, but the queue pair receives nothing")]
    fn flush(&self, wr_ids: &[u64]) -> Result<VerbsQp, VerbError> {
        let mut qp = self.create_qp()?;
        let (attributes, mask) = QpAttributes::init(qp.kind(), 1, 0);
        qp.modify(&attributes, mask)?;
        let addr = self.mr.region().base().as_ptr().addr() as u64;
        let sges = [Sge { addr, length: 1, lkey: self.mr.lkey() }];
        let requests: Vec<_> = wr_ids.iter().map(|&wr_id| RecvRequest { wr_id, sges: &sges }).collect();
        // SAFETY: the memory is registered until the queue pair has been dropped, and nothing else accesses it.
        unsafe { qp.post_recv(&requests) }.map_err(|refused| refused.error)?;
        let (attributes, mask) = QpAttributes::to(QpState::Err);
        qp.modify(&attributes, mask)?;
        Ok(qp)
    }

    fn attempt(&mut self) -> SelfTest {
        let mut run = Completions::new();
        for round in 0..ROUNDS {
            let expected: Vec<u64> = (round * BATCH..(round + 1) * BATCH).collect();
            let _qp = match self.flush(&expected) {
                Ok(qp) => qp,
                Err(error) => return SelfTest::Unknown(error.to_string()),
            };
            let mut seen = Vec::new();
            let until = Instant::now() + TIMEOUT;
            while seen.len() < expected.len() && Instant::now() < until {
                match self.cq.poll_run(&mut run, MAX_RUN) {
                    Ok(0) => thread::yield_now(),
                    Ok(n) => seen.extend_from_slice(&run.wr_id[..n]),
                    Err(error) => return SelfTest::Failed(error.to_string()),
                }
            }
            // A working device returns no further completion.
            match self.cq.poll_run(&mut run, MAX_RUN) {
                Ok(n) => seen.extend_from_slice(&run.wr_id[..n]),
                Err(error) => return SelfTest::Failed(error.to_string()),
            }
            if round == 0 && seen.is_empty() {
                // Nothing was polled, so nothing is known about polling.
                return SelfTest::Unknown("the device flushed no receive".to_owned());
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
}
