//! Tests with a logger that uses the queues of the program when the provider logs a message.

use std::sync::{Arc, Mutex};
use std::thread;

use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::raw::{TestDevice, test_device};
use crate::fake::Call;
use crate::{VerbsCq, VerbsPd, VerbsQp};
use dataplane_core::units::Gid;
use dataplane_core::verbs::*;

/// A logger that ends the claim of this thread on a queue. Another thread then polls the queue.
struct PollingLogger(Arc<Mutex<VerbsCq>>);

impl Subscriber for PollingLogger {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        self.0.lock().unwrap().release_claim();
        let queue = self.0.clone();
        thread::spawn(move || queue.lock().unwrap().start_poll().map(drop)).join().unwrap().unwrap();
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Creates a queue pair on a completion queue without a lock.
fn queue_pair(test: &TestDevice, kind: QpType, queue: (u16, u16)) -> (VerbsPd, VerbsCq, VerbsQp) {
    let spec = CqSpec { depth: 16, flags: CqFlags::SINGLE_THREADED, ..CqSpec::default() };
    let (cq, granted) = test.device.create_cq(&spec, None).unwrap();
    assert!(granted.flags.contains(CqFlags::SINGLE_THREADED), "{granted}");
    let pd = test.device.alloc_pd().unwrap();
    let caps = QpCaps { send_depth: 8, recv_depth: 8, send_sges: 1, recv_sges: 1, inline: 0 };
    let mut qp = pd.create_qp(&QpSpec { queue, ..QpSpec::new(kind, caps) }, &cq, &cq, None).unwrap();
    for (attributes, mask) in super::fake_driver::changes_to_rts(kind) {
        qp.modify(&attributes, mask).unwrap();
    }
    (pd, cq, qp)
}

/// Calls `change` with a logger that polls `queue`. Checks that the logger polls only after the verb `last`, because this
/// verb needs the claim on the queue.
fn check(test: &TestDevice, queue: VerbsCq, change: impl FnOnce(), last: impl Fn(&Call) -> bool) {
    test.fake.calls();
    let queue = Arc::new(Mutex::new(queue));
    tracing::subscriber::with_default(PollingLogger(queue), change);
    let calls = test.fake.calls();
    let last = calls.iter().rposition(last).unwrap();
    let poll = calls.iter().position(|call| matches!(call, Call::StartPoll { .. })).expect("a message was logged");
    assert!(last < poll, "{calls:?}");
}

#[test]
fn message_about_a_multicast_group_is_logged_after_the_destruction_of_the_queue_pair() {
    let test = test_device();
    let (pd, cq, mut qp) = queue_pair(&test, QpType::Ud, (0, 1));
    qp.attach_multicast(Gid([0xff; 16]), 0).unwrap();
    test.fake.refuse("ibv_detach_mcast", libc::EINVAL);
    check(&test, cq, || drop(qp), |call| matches!(call, Call::DestroyQp(_)));
    drop(pd);
}

#[test]
fn message_about_a_flow_rule_is_logged_after_the_change_of_the_state() {
    let test = test_device();
    let (_pd, first_cq, mut first) = queue_pair(&test, QpType::RawPacket, (0, 2));
    let (_other_pd, _second_cq, second) = queue_pair(&test, QpType::RawPacket, (1, 2));
    test.fake.refuse("ibv_destroy_flow", libc::EBUSY);
    let change = || {
        let (error, mask) = QpAttributes::to(QpState::Err);
        first.modify(&error, mask).unwrap();
    };
    check(&test, first_cq, change, |call| matches!(call, Call::ModifyWq { .. }));
    drop((first, second));
}
