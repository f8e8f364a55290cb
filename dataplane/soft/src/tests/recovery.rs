//! Tests of connections with random sequences of verbs, over a wire that loses, duplicates, reorders and corrupts
//! packets.

use proptest::prelude::*;

use super::ends::*;
use super::*;

use WcStatus::{RetryExcErr, Success, WrFlushErr};

// Offsets in the memory of an end: sent messages, the counter of atomics, and memory that RDMA writes use. In the
// memory of the receiving end, the buffers of receives start at offset 0.
const SENT: usize = 0;
const COUNTER: usize = 1 << 17;
const WRITTEN: usize = COUNTER + 4096;
/// The maximum length of a message, in bytes.
const ROOM: u32 = 6_000;

#[derive(Clone, Debug)]
enum Step {
    Recv,
    Send { length: u32, imm: bool },
    Write { length: u32, imm: bool },
    Read { length: u32 },
    Add,
    Poll,
    Wait(u64),
    Stop,
    Fail(bool),
    Reset,
}

fn steps(breaks: bool) -> impl Strategy<Value = Vec<Step>> {
    let odds = u32::from(breaks);
    let length = || prop_oneof![0..10u32, 1_000..1_050u32, 0..ROOM];
    let step = prop_oneof![
        8 => Just(Step::Recv),
        6 => (length(), any::<bool>()).prop_map(|(length, imm)| Step::Send { length, imm }),
        4 => (length(), any::<bool>()).prop_map(|(length, imm)| Step::Write { length, imm }),
        4 => length().prop_map(|length| Step::Read { length }),
        4 => Just(Step::Add),
        6 => Just(Step::Poll),
        4 => (0..3_000_000u64).prop_map(Step::Wait),
        2 => Just(Step::Stop),
        odds => any::<bool>().prop_map(Step::Fail),
        odds => Just(Step::Reset),
    ];
    prop::collection::vec(step, 1..60)
}

fn faults() -> impl Strategy<Value = FaultSpec> {
    let odds = || prop_oneof![2 => Just(0.0), 1 => 0.0..0.2f64];
    (any::<u64>(), [odds(), odds(), odds(), odds(), odds()], 0..2_000_000u64).prop_map(|(seed, odds, delay_by)| {
        let [loss, duplicate, reorder, corrupt, delay] = odds;
        FaultSpec { seed, loss, duplicate, reorder, corrupt, delay, delay_by: period(delay_by), ..FaultSpec::default() }
    })
}

/// A send that uses a receive of the peer: a message, or a write with immediate data. The fields are the number and the
/// length of the send.
#[derive(Clone, Debug, PartialEq)]
enum Expected {
    Message(u64, u32),
    Written(u64, u32),
}

#[derive(Default)]
struct Model {
    next: u64,
    /// Outstanding sends, in order.
    sending: Vec<u64>,
    /// Outstanding receives, in order.
    receiving: Vec<u64>,
    /// Posted sends that use a receive of the peer and have not arrived, in order.
    expected: Vec<Expected>,
    received: usize,
    sent: usize,
    adds: u64,
    failed: bool,
}

struct Program {
    a: End,
    b: End,
    kind: QpType,
    model: Model,
}

impl Program {
    fn bytes(number: u64, length: u32) -> Vec<u8> {
        (0..length).map(|at| (number * 31 + u64::from(at) * 7) as u8).collect()
    }

    fn post(&mut self, op: SendOp<'static>, at: usize, length: u32) -> bool {
        let number = self.model.next;
        let sge = [self.a.sge(at, length)];
        let posted = self.model.sending.len() < 16 && self.a.post(number, op, &sge).is_ok();
        if posted {
            self.model.next += 1;
            self.model.sending.push(number);
        }
        posted
    }

    /// Returns the offset at which the bytes of a send are stored. Outstanding sends have different offsets.
    fn offset_of(&self, number: u64) -> usize {
        SENT + (number % 16) as usize * ROOM as usize
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let number = self.model.next;
        let at = self.offset_of(number);
        let imm = number as u32;
        match *step {
            Step::Recv => {
                let slot = self.model.received + self.model.receiving.len();
                let into = [self.b.sge(slot % 16 * ROOM as usize, ROOM)];
                if self.b.post_recv(slot as u64, &into).is_ok() {
                    self.model.receiving.push(slot as u64);
                }
            }
            Step::Send { length, imm: with } => {
                let op = if with { SendOp::SendWithImm(imm) } else { SendOp::Send };
                if self.model.sending.len() < 16 {
                    self.a.put(at, &Self::bytes(number, length));
                    if self.post(op, at, length) {
                        self.model.expected.push(Expected::Message(number, length));
                    }
                }
            }
            Step::Write { length, imm: with } => {
                let remote = self.b.remote(WRITTEN);
                let op = if with { SendOp::RdmaWriteWithImm(remote, imm) } else { SendOp::RdmaWrite(remote) };
                if self.model.sending.len() < 16 {
                    self.a.put(at, &Self::bytes(number, length));
                    if self.post(op, at, length) && with {
                        self.model.expected.push(Expected::Written(number, length));
                    }
                }
            }
            Step::Read { length } if self.kind == QpType::Rc => {
                self.post(SendOp::RdmaRead(self.b.remote(WRITTEN)), WRITTEN + 4096, length);
            }
            Step::Add if self.kind == QpType::Rc => {
                let op = SendOp::FetchAdd { remote: self.b.remote(COUNTER), add: 1 };
                self.model.adds += u64::from(self.post(op, COUNTER, 8));
            }
            Step::Read { .. } | Step::Add => {}
            Step::Poll => self.poll()?,
            Step::Wait(nanos) => self.a.clock.advance(Nanos(nanos)),
            Step::Stop => match self.a.qp.state() {
                QpState::Rts => self.a.to(QpState::Sqd),
                QpState::Sqd => self.a.to(QpState::Rts),
                _ => {}
            },
            Step::Fail(first) => {
                let end = if first { &mut self.a } else { &mut self.b };
                end.to(QpState::Err);
                self.model.failed = true;
            }
            Step::Reset => self.reset()?,
        }
        Ok(())
    }

    /// Resets and reconnects both ends. Outstanding requests are discarded and never complete.
    fn reset(&mut self) -> Result<(), TestCaseError> {
        self.poll()?;
        self.a.to(QpState::Reset);
        self.b.to(QpState::Reset);
        self.model = Model { next: self.model.next, ..Model::default() };
        self.a.sent();
        self.b.received();
        self.b.put(COUNTER, &[0; 8]);
        // Use new packet sequence numbers, so that an end does not accept packets that are still in transit.
        for attributes in [&mut self.a.attributes, &mut self.b.attributes] {
            attributes.sq_psn = (attributes.sq_psn + 100_000) & 0xff_ffff;
            attributes.rq_psn = (attributes.rq_psn + 100_000) & 0xff_ffff;
        }
        connect(&mut self.a, &mut self.b);
        Ok(())
    }

    fn poll(&mut self) -> Result<(), TestCaseError> {
        let model = &mut self.model;
        for (wr_id, status, _) in self.a.sent() {
            prop_assert_eq!(model.sending.first(), Some(&wr_id), "sends complete once and in order");
            model.sending.remove(0);
            model.sent += 1;
            prop_assert!(matches!(status, Success | RetryExcErr | WrFlushErr), "{}", status);
            model.failed |= status != Success;
        }
        for completion in End::completions(&mut self.b.recv) {
            let wr_id = completion.wr_id;
            prop_assert_eq!(model.receiving.first(), Some(&wr_id), "receives complete once and in order");
            model.receiving.remove(0);
            model.received += 1;
            if completion.status == WrFlushErr {
                model.failed = true;
                continue;
            }
            prop_assert_eq!(completion.status, Success);
            // Messages arrive at most once and in order. On unreliable connections, some messages may never arrive.
            let at = self.b.get(wr_id as usize % 16 * ROOM as usize, ROOM as usize);
            loop {
                prop_assert!(
                    !model.expected.is_empty(),
                    "a receive completes, but all sends that use a receive have arrived"
                );
                let fits = match model.expected.remove(0) {
                    Expected::Message(number, length) => {
                        completion.opcode() == Some(WcOpcode::Recv)
                            && completion.byte_len() == Some(length)
                            && at[..length as usize] == Self::bytes(number, length)
                            && completion.imm().is_none_or(|imm| imm == number as u32)
                    }
                    Expected::Written(number, length) => {
                        completion.opcode() == Some(WcOpcode::RecvRdmaWithImm)
                            && completion.byte_len() == Some(length)
                            && completion.imm() == Some(number as u32)
                    }
                };
                if fits {
                    break;
                }
                prop_assert_eq!(self.kind, QpType::Uc, "a reliable connection loses no message");
            }
        }
        Ok(())
    }

    /// Posts receives and advances time until all sends have completed.
    fn finish(&mut self) -> Result<(), TestCaseError> {
        if self.a.qp.state() == QpState::Sqd {
            self.a.to(QpState::Rts);
        }
        for _ in 0..3_000 {
            if self.model.sending.is_empty() && (self.model.expected.is_empty() || self.kind == QpType::Uc) {
                break;
            }
            self.step(&Step::Recv)?;
            self.poll()?;
            self.a.clock.advance(Nanos(1_000_000));
        }
        self.poll()
    }
}

fn program(kind: QpType, profile: Profile, faults: FaultSpec) -> Program {
    let mut ends = Ends { faults, ..Ends::of(profile, kind) };
    let attributes = &mut ends.attributes;
    (attributes.timeout, attributes.rnr_retry, attributes.retry_count) = (8, 7, 7);
    let (a, b) = ends.connected();
    Program { a, b, kind, model: Model::default() }
}

proptest! {
    /// With the rxe profile and unlimited retries, messages arrive exactly once and in order, despite all faults.
    #[test]
    fn connection_delivers_every_message_exactly_once(steps in steps(false), faults in faults()) {
        let mut program = program(QpType::Rc, Profile::Rxe, faults);
        steps.iter().try_for_each(|step| program.step(step))?;
        program.finish()?;
        let model = &program.model;
        prop_assert!(model.sending.is_empty() && model.expected.is_empty(), "{:?} {:?}", model.sending, model.expected);
        prop_assert_eq!(program.b.get(COUNTER, 8), model.adds.to_ne_bytes().to_vec(), "each add takes effect once");
    }

    /// Every request completes exactly once or is discarded by RESET, despite all faults and errors.
    #[test]
    fn requests_complete_exactly_once(
        steps in steps(true),
        faults in faults(),
        connected: bool,
        rxe: bool,
    ) {
        let kind = if connected { QpType::Rc } else { QpType::Uc };
        // An unreliable connection accepts the start of a message with any packet sequence number. The connection
        // cannot distinguish a late or duplicate message from a new message. The faults that duplicate, delay or
        // reorder packets are therefore disabled.
        let faults = if connected { faults } else { FaultSpec { duplicate: 0.0, delay: 0.0, reorder: 0.0, ..faults } };
        let mut program = program(kind, if rxe { Profile::Rxe } else { Profile::Spec }, faults);
        steps.iter().try_for_each(|step| program.step(step))?;
        program.a.to(QpState::Err);
        program.b.to(QpState::Err);
        program.poll()?;
        prop_assert!(program.model.sending.is_empty() && program.model.receiving.is_empty());
    }
}

/// A connection that exhausts its retries reports an error. Messages that arrived earlier are still correct.
#[test]
fn heavy_loss_fails_the_connection() {
    let mut ended = 0;
    for seed in 0..50 {
        let faults = FaultSpec { seed, loss: 0.7, ..FaultSpec::default() };
        let mut program = program(QpType::Rc, Profile::Spec, faults);
        for _ in 0..8 {
            program.step(&Step::Recv).unwrap();
            program.step(&Step::Send { length: 2_000, imm: true }).unwrap();
        }
        program.finish().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert!(program.model.sending.is_empty(), "seed {seed}");
        ended += u32::from(program.model.failed);
    }
    assert!(ended > 10, "only {ended} of 50 connections failed");
}

#[test]
fn same_seed_gives_the_same_run() {
    let run = |seed| {
        let faults = FaultSpec { seed, loss: 0.2, duplicate: 0.1, reorder: 0.2, ..FaultSpec::default() };
        let mut program = program(QpType::Rc, Profile::Rxe, faults);
        for _ in 0..16 {
            program.step(&Step::Recv).unwrap();
            program.step(&Step::Send { length: 3_000, imm: false }).unwrap();
        }
        program.finish().unwrap();
        (program.a.device.counters(), program.b.device.counters(), program.a.clock.now())
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
