//! Tests with random sequences of verbs: every request completes exactly once, and no slot is lost.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Recv(usize),
    Send { count: usize, signal: bool, run: bool },
    PollRecv(usize),
    PollSend(usize),
    Cursor,
    Fail,
    Stop,
    Reset,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1usize..6).prop_map(Step::Recv),
        4 => (1usize..6, any::<bool>(), any::<bool>()).prop_map(|(count, signal, run)| Step::Send { count, signal, run }),
        4 => (1usize..20).prop_map(Step::PollRecv),
        4 => (1usize..20).prop_map(Step::PollSend),
        1 => Just(Step::Cursor),
        1 => Just(Step::Fail),
        1 => Just(Step::Stop),
        1 => Just(Step::Reset),
    ];
    prop::collection::vec(step, 1..80)
}

/// The model of the expected state.
#[derive(Default)]
struct Model {
    /// The `wr_id` values of the posted receives, in order.
    posted: Vec<u64>,
    /// Sends that may be outstanding: the `wr_id` of each send, and whether the send is signalled.
    sending: Vec<(u64, bool)>,
    next: u64,
}

impl Model {
    fn received(&mut self, wr_id: u64) -> Result<(), TestCaseError> {
        prop_assert_eq!(self.posted.first().copied(), Some(wr_id), "receives complete once and in order");
        self.posted.remove(0);
        Ok(())
    }

    fn sent(&mut self, wr_id: u64, status: WcStatus) -> Result<(), TestCaseError> {
        let at = self.sending.iter().position(|(number, _)| *number == wr_id);
        prop_assert!(at.is_some(), "send {} completed twice or was never posted", wr_id);
        let at = at.unwrap_or(0);
        prop_assert!(
            self.sending[at].1 || status != WcStatus::Success,
            "an unsignalled send has no successful completion"
        );
        prop_assert!(self.sending[..at].iter().all(|(_, signalled)| !signalled), "sends complete in order");
        self.sending.drain(..=at);
        Ok(())
    }
}

fn run(kind: QpType, faults: FaultSpec, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut rig = Rig::with(SoftSpec { faults, ..reflecting() }, Plan { kind, ..Plan::default() }).ready();
    let mut model = Model::default();
    let mut free: Vec<u32> = (0..40).collect();
    for step in steps {
        match step {
            Step::Recv(count) => {
                let slots: Vec<u32> = free.iter().rev().take(*count).copied().collect();
                let accepted = rig.post_recv_run(&slots).map_or_else(|refused| refused.accepted, |()| slots.len());
                prop_assert_eq!(accepted, slots.len().min(16 - model.posted.len()));
                for slot in &slots[..accepted] {
                    free.pop();
                    model.posted.push(1000 + u64::from(*slot));
                }
            }
            Step::Send { count, signal, run } => {
                let room = 16 - model.sending.len();
                let accepted = if *run && kind == QpType::RawPacket {
                    let desc = rig.put(50, &[1; 60]);
                    let posted = rig.post_send_run(&vec![desc; *count], model.next);
                    let accepted = posted.map_or_else(|refused| refused.accepted, |()| *count);
                    (0..accepted).for_each(|i| model.sending.push((model.next + i as u64, i + 1 == accepted)));
                    accepted
                } else {
                    let flags = if *signal { SendFlags::SIGNALED } else { SendFlags::empty() };
                    let sge = rig.sge(50, 60);
                    let mut accepted = 0;
                    while accepted < *count && rig.post_send(model.next + accepted as u64, &[sge], flags).is_ok() {
                        model.sending.push((model.next + accepted as u64, *signal));
                        accepted += 1;
                    }
                    accepted
                };
                prop_assert_eq!(accepted, (*count).min(room));
                model.next += accepted as u64;
            }
            Step::PollRecv(limit) => {
                for (wr_id, ..) in rig.receive(*limit) {
                    model.received(wr_id)?;
                    free.push((wr_id - 1000) as u32);
                }
            }
            Step::PollSend(limit) => {
                prop_assert!(rig.send.poll_run(&mut rig.run, *limit).unwrap() <= *limit);
                for (wr_id, status, _) in completions_of(&rig.run) {
                    model.sent(wr_id, status)?;
                }
            }
            Step::Cursor => {
                let mut cursor = rig.recv.start_poll().unwrap();
                while let Some(open) = &mut cursor {
                    model.received(open.get().wr_id)?;
                    free.push((open.get().wr_id - 1000) as u32);
                    if !open.advance().unwrap() {
                        break;
                    }
                }
            }
            Step::Fail => rig.go(QpState::Err),
            Step::Stop => {
                if rig.qp.state() == QpState::Rts {
                    rig.go(QpState::Sqd);
                } else if rig.qp.state() == QpState::Sqd {
                    rig.go(QpState::Rts);
                }
            }
            Step::Reset => {
                rig.go(QpState::Reset);
                free.extend(model.posted.drain(..).map(|wr_id| (wr_id - 1000) as u32));
                model.sending.clear();
                rig = rig.ready();
            }
        }
        prop_assert_eq!(free.len() + model.posted.len(), 40);
    }
    // Moving to ERR returns all outstanding requests.
    rig.go(QpState::Err);
    for (wr_id, ..) in rig.received() {
        model.received(wr_id)?;
    }
    for (wr_id, status) in rig.sent() {
        model.sent(wr_id, status)?;
    }
    prop_assert!(model.posted.is_empty());
    prop_assert!(model.sending.iter().all(|(_, signalled)| !signalled), "{:?}", model.sending);
    Ok(())
}

proptest! {
    #[test]
    fn requests_complete_exactly_once(steps in steps(), datagrams: bool, seed: u64, odds in prop_oneof![Just(0.0), Just(0.1)]) {
        let kind = if datagrams { QpType::Ud } else { QpType::RawPacket };
        let faults = FaultSpec {
            seed,
            loss: odds,
            duplicate: odds,
            reorder: odds,
            corrupt: odds,
            rx_error: odds / 4.0,
            tx_error: odds / 4.0,
            ..FaultSpec::default()
        };
        run(kind, faults, &steps)?;
    }
}
