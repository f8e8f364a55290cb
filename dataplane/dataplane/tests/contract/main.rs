//! The verbs contract suite: runs the same cases on every device and requires the same results.
//!
//! A case is a function that calls verbs on two endpoints ([`bed::Pair`]). The case logs each observation as a line,
//! and compares the log with the lines that the InfiniBand specification and the manual pages require (the standard).
//! Where a device differs from the standard, [`differences`] lists the line, its replacement and the reason. A case
//! fails if the log differs from the standard in a line that is not listed, or if a listed difference does not occur.
//!
//! The suite runs on the software device with both of its profiles: `Spec` (the standard) and `Rxe` (the behaviour of
//! rxe, the kernel's software RoCE driver). A further bed (`soft::unchecked`) has software devices with two properties
//! of real NICs: the devices do not check every key, and refuse the change from RTS to SQD. The devices of the bed
//! `soft::infiniband` have InfiniBand ports. The ports of the bed `soft::unspecified` have an unspecified link layer,
//! as on efa. On the bed `soft::iwarp`, the suite must skip every case with a queue pair. On the bed
//! `soft::other_driver`, the devices have properties of several real NICs, and the suite must not fail because of these
//! properties. On the bed `soft::long_cable`, packets arrive later than the completions of their sends. On the bed
//! `soft::no_flow_rules`, the suite must skip every case that sends raw packets.
//!
//! With `--include-ignored`, the suite also runs on real rxe devices: `rxe0` and `rxe1`, which are connected to each
//! other, and `rxe2`, which loops back to itself. `tools/vm/check-contract` runs the suite in a VM with these devices.
//! `tools/nic-day` runs the suite on the devices of a real NIC.
//!
//! Each case on each test bed is a separate test with the name `BED::FILE::CASE`.

mod bed;
mod cases;
mod differences;
#[cfg(feature = "ibverbs")]
mod flow_rules;
mod fuzz;
#[cfg(feature = "ibverbs")]
mod nic;
mod skips;

use std::process::ExitCode;
use std::time::Duration;

use bed::{Connection, EndpointSpec, Outcome, Pair, PairCq, Profile, Stop, TestBed};
use dataplane::clock::HostClock;
use dataplane::soft::{self, FaultSpec, LinkSpec, LoopbackLink, SoftDevice, SoftSpec};
use dataplane::units::Period;
use dataplane::verbs::{Capability, QpState, QpType, RawDevice};
use libtest_mimic::{Arguments, Completion, Failed};

/// A running case.
pub(crate) struct Trial<'a, D: RawDevice> {
    pub(crate) bed: &'a TestBed<D>,
    case: &'static str,
    log: Vec<String>,
    checked: bool,
}

/// The name and the function of a case.
pub(crate) type Case<D> = (&'static str, fn(&mut Trial<'_, D>) -> Outcome);

impl<D: RawDevice> Trial<'_, D> {
    /// Skips the case unless both devices have the capability.
    pub(crate) fn require(&self, capability: Capability) -> Outcome {
        match self.has(capability) {
            true => Ok(()),
            false => Err(Stop::Skip(capability.name().to_owned(), libc::EOPNOTSUPP)),
        }
    }

    /// Returns whether both devices have the capability.
    pub(crate) fn has(&self, capability: Capability) -> bool {
        let has = |device: &D| device.capabilities().has.contains(&capability);
        has(&self.bed.a) && has(&self.bed.b)
    }

    /// Skips the case unless requests may have this number of scatter/gather elements.
    pub(crate) fn require_elements(&self, count: u32) -> Outcome {
        match self.bed.fit(bed::CAPS).send_sges >= count {
            true => Ok(()),
            false => Err(Stop::Skip(format!("requests with {count} elements"), libc::EINVAL)),
        }
    }

    /// Creates two queue pairs in RTS that are connected to each other.
    pub(crate) fn pair(&self, kind: QpType) -> Outcome<Pair<D>> {
        self.pair_with(EndpointSpec::new(kind), Connection::default(), Connection::default())
    }

    pub(crate) fn pair_with(&self, spec: EndpointSpec, a: Connection, b: Connection) -> Outcome<Pair<D>> {
        Pair::connected(self.bed, spec, a, b)
    }

    /// Sends two messages in each direction between two new queue pairs.
    ///
    /// When this function returns, every message that was sent before the call has arrived or is lost.
    pub(crate) fn round_trips(&self) -> Outcome {
        let mut pair = self.pair(QpType::Rc)?;
        for wr_id in 0..2 {
            pair.a.recv(wr_id, 0..10)?;
            pair.b.recv(wr_id, 0..10)?;
        }
        for n in 1..=2 {
            pair.a.send(0, 0..1)?;
            let there = pair.wait(&[(PairCq::ASent, n), (PairCq::BReceived, n)])?;
            pair.b.send(0, 0..1)?;
            if !there || !pair.wait(&[(PairCq::BSent, n), (PairCq::AReceived, n)])? {
                return Err(Stop::Fail("no round trip".to_owned()));
            }
        }
        Ok(())
    }

    /// Appends a line to the log of the case.
    pub(crate) fn log(&mut self, line: impl Into<String>) {
        self.log.push(line.into());
    }

    /// Waits until the queues in `wanted` have the given numbers of completions, and logs all polled completions.
    pub(crate) fn wait_and_log(&mut self, pair: &mut Pair<D>, wanted: &[(PairCq, usize)]) -> Outcome {
        let all = pair.wait(wanted)?;
        pair.log_completions(&mut self.log);
        if !all {
            self.log.push(format!("fewer completions than {wanted:?}"));
        }
        Ok(())
    }

    /// Logs the states of both queue pairs as reported by their devices.
    pub(crate) fn log_states(&mut self, pair: &Pair<D>) -> Outcome {
        self.log.push(format!("a {}, b {}", pair.a.state()?, pair.b.state()?));
        Ok(())
    }

    /// Compares the log with the lines that the standard requires, and ends the case.
    pub(crate) fn expect(&mut self, standard: &str) -> Outcome {
        self.checked = true;
        let standard: Vec<String> =
            standard.lines().map(|line| line.trim().to_owned()).filter(|it| !it.is_empty()).collect();
        let wanted = differences::apply(self.case, self.bed.properties()?, &standard).map_err(Stop::Fail)?;
        if self.log == wanted {
            return Ok(());
        }
        let mut diff = String::new();
        for at in 0..self.log.len().max(wanted.len()) {
            let (got, want) = (self.log.get(at), wanted.get(at));
            let mark = if got == want { ' ' } else { '!' };
            let line = |line: Option<&String>| line.map_or("(nothing)", |line| line).to_owned();
            diff += &format!("\n   {mark} {:<58} want: {}", line(got), line(want));
        }
        Err(Stop::Fail(diff))
    }
}

/// Runs a case on a test bed. The case may be skipped only if the bed lacks a capability that `skips.rs` allows: for
/// every bed, or for this bed in `lacks`.
fn run_case<D: RawDevice>(bed: &TestBed<D>, (case, run): Case<D>, lacks: &[&str]) -> Result<Completion, Failed> {
    let mut trial = Trial { bed, case, log: Vec::new(), checked: false };
    match run(&mut trial) {
        Ok(()) if trial.checked => Ok(Completion::Completed),
        Ok(()) => Err("the case ended without a call of `expect`".into()),
        Err(Stop::Skip(capability, errno)) => {
            let why = if errno == 0 { "not in the contract".to_owned() } else { bed::errno_name(errno) };
            let reason = format!("{capability}: {why}");
            if !skips::may_skip(lacks, &capability) {
                return Err(format!("skipped, but skips.rs does not allow this bed to lack {reason}").into());
            }
            Ok(Completion::ignored_with(reason))
        }
        Err(Stop::Fail(why)) => match trial.log.last() {
            Some(line) => Err(format!("{why} (last line of the log: {line})").into()),
            None => Err(why.into()),
        },
    }
}

/// Returns a test for each case. Each test creates its own test bed.
fn tests_of<D: RawDevice>(
    name: &'static str,
    bed: fn(&'static str) -> TestBed<D>,
    lacks: &'static [&'static str],
) -> impl Iterator<Item = Test> {
    cases::all::<D>().into_iter().map(move |case| {
        let run = move || run_case(&bed(name), case, lacks);
        (format!("{name}::{}", case.0.replace('.', "::")), Box::new(run) as Run)
    })
}

/// Returns a test that runs the same random programs on two test beds and compares the results. The first of the
/// `count` programs has the seed `seed`.
fn fuzz_test<A: RawDevice, B: RawDevice>(
    name: &'static str,
    beds: impl Fn() -> (TestBed<A>, TestBed<B>) + Send + 'static,
    (seed, count): (u64, u64),
) -> Test {
    let run = move || {
        let (first, second) = beds();
        fuzz::compare(&first, &second, name, (seed, count));
        Ok(Completion::Completed)
    };
    (name.to_owned(), Box::new(run))
}

type Run = Box<dyn FnOnce() -> Result<Completion, Failed> + Send>;
type Test = (String, Run);

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let names = || {
        differences::check_names(&cases::all::<SoftDevice>().iter().map(|(case, _)| *case).collect::<Vec<_>>());
        Ok(Completion::Completed)
    };
    let other_nics = || {
        differences::check_other_nics();
        differences::check_missing_types();
        Ok(Completion::Completed)
    };
    let mut tests: Vec<Test> = vec![
        ("differences_name_existing_cases".to_owned(), Box::new(names)),
        ("other_nics_need_no_defect_of_rxe".to_owned(), Box::new(other_nics)),
    ];
    tests.extend(tests_of("soft::cable", |name| soft(name, Profile::Spec), skips::SOFT));
    tests.extend(tests_of("soft::rxe_profile", |name| soft(name, Profile::Rxe), skips::RXE));
    tests.extend(tests_of("soft::alone", |name| soft_alone(name, Profile::Spec), skips::SOFT_ALONE));
    tests.extend(tests_of("soft::unchecked", soft_unchecked, skips::SOFT_UNCHECKED));
    tests.extend(tests_of("soft::fewer_capabilities", soft_fewer_capabilities, skips::SOFT_FEWER_CAPABILITIES));
    tests.extend(tests_of("soft::other_driver", soft_other_driver, skips::SOFT_OTHER_DRIVER));
    tests.extend(tests_of("soft::no_flow_rules", soft_no_flow_rules, skips::SOFT_NO_FLOW_RULES));
    tests.extend(tests_of("soft::infiniband", soft_infiniband, skips::SOFT_INFINIBAND));
    tests.extend(tests_of("soft::unspecified", soft_unspecified, skips::SOFT_UNSPECIFIED));
    tests.extend(tests_of("soft::iwarp", soft_iwarp, skips::SOFT_IWARP));
    let is_lost = |(name, _): &Test| name.ends_with("_no_receive");
    tests.extend(tests_of("soft::long_cable", soft_long_cable, skips::SOFT).filter(is_lost));
    // Compare endpoints on two devices with endpoints on one device: the results must be equal.
    // The program with the seed 3307 once had different results on the software device and on rxe.
    for (name, profile, programs) in [
        ("soft::fuzz", Profile::Spec, (1, 1000)),
        ("soft::fuzz_rxe_profile", Profile::Rxe, (1, 1000)),
        ("soft::fuzz_of_seed_3307", Profile::Rxe, (3307, 1)),
    ] {
        let beds = move || (soft("two devices", profile), soft_alone("one device", profile));
        tests.push(fuzz_test(name, beds, programs));
    }
    #[cfg(feature = "ibverbs")]
    {
        tests.push(("soft::flow_rules".to_owned(), Box::new(|| flow_rules::compare(1000))));
        tests.extend(rxe::tests(arguments.include_ignored));
        tests.extend(nic::tests());
    }
    let trials = tests.into_iter().map(|(name, run)| libtest_mimic::Trial::ignorable_test(name, run)).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Returns a test bed with two software devices that are connected by a loopback cable.
fn soft(name: &'static str, profile: Profile) -> TestBed<SoftDevice> {
    soft_with(name, profile, |_| {})
}

/// Returns a test bed with two software devices that do not check every key, and refuse the change from RTS to SQD.
fn soft_unchecked(name: &'static str) -> TestBed<SoftDevice> {
    soft_with(name, Profile::Spec, |spec| {
        spec.checks_every_key = false;
        spec.refused_change = Some((QpState::Rts, QpState::Sqd));
    })
}

/// Returns a test bed with two software devices that lack some capabilities. The second device has a further GID before
/// the GID of the endpoints.
fn soft_fewer_capabilities(name: &'static str) -> TestBed<SoftDevice> {
    let bed = soft_with(name, Profile::Spec, |spec| {
        spec.disabled_capabilities = vec![Capability::Atomic, Capability::FlowTag];
        spec.quirks = vec![soft::SoftQuirk::PlainFlowRules];
    });
    let own = bed.b.gid();
    let mut further = own;
    further.0[15] ^= 1;
    bed.b.set_gids(&[further, own]);
    TestBed { gid_index: [0, 1], ..bed }
}

/// Returns a test bed with two software devices with InfiniBand ports, which accept only packets to their LID.
fn soft_infiniband(name: &'static str) -> TestBed<SoftDevice> {
    soft_with(name, Profile::Spec, |spec| spec.port.lid = u16::from(spec.mac[5]))
}

/// Returns a test bed with two software devices whose ports have an unspecified link layer. As on efa, the completions
/// of datagrams have no GRH flag.
fn soft_unspecified(name: &'static str) -> TestBed<SoftDevice> {
    soft_with(name, Profile::Spec, |spec| spec.quirks = vec![soft::SoftQuirk::UnspecifiedLinkLayer])
}

/// Returns a test bed with two software devices that are like iWARP devices: the devices only create RC queue pairs, do
/// not list them, and refuse every change of their state.
fn soft_iwarp(name: &'static str) -> TestBed<SoftDevice> {
    soft_with(name, Profile::Spec, |spec| {
        spec.disabled_capabilities = vec![Capability::RawPacket, Capability::Datagram, Capability::Uc];
        spec.hidden_qp_types = vec![Capability::Rc];
        spec.refused_change = Some((QpState::Reset, QpState::Init));
    })
}

/// Returns a test bed with two software devices that create queue pairs for raw packets, but refuse every flow rule,
/// and have no offloads.
fn soft_no_flow_rules(name: &'static str) -> TestBed<SoftDevice> {
    use Capability as C;
    soft_with(name, Profile::Spec, |spec| {
        spec.quirks = vec![soft::SoftQuirk::RefusesFlowRules];
        spec.disabled_capabilities =
            vec![C::FlowRules, C::FlowTag, C::Cvlan, C::RxChecksum, C::TxChecksum, C::VlanStrip];
        spec.disabled_capabilities.extend([C::Fcs, C::RssHash, C::Tso, C::Pacing, C::Rss]);
    })
}

/// Returns a test bed with two software devices that have properties of real NICs (mlx5, irdma, hns and efa). The
/// switch between the devices regards the address of the receiver as an address of the sender, as after a move of the
/// cables.
fn soft_other_driver(name: &'static str) -> TestBed<SoftDevice> {
    use soft::SoftQuirk as Q;
    let bed = soft_with(name, Profile::Spec, |spec| {
        spec.quirks = vec![
            Q::OnDemandPaging,
            Q::NoPathFields,
            Q::NoCqResize,
            Q::RefusesUdOperations,
            Q::RefusesUnsignalled,
            Q::ResetIsFinal,
            Q::BehindSwitch,
        ];
        spec.limits.max_sge = 2;
    });
    cases::confuse_switch(&bed).unwrap_or_else(|_| panic!("the devices exchange no frame"));
    bed
}

/// Returns a test bed with two software devices. Each packet arrives some time after the completion of its send.
fn soft_long_cable(name: &'static str) -> TestBed<SoftDevice> {
    soft_with(name, Profile::Spec, |spec| {
        spec.faults = FaultSpec { delay: 1.0, delay_by: Period(Duration::from_millis(5)), ..FaultSpec::default() };
    })
}

/// Returns a test bed with two connected software devices. `change` changes the description of each device.
fn soft_with(name: &'static str, profile: Profile, change: fn(&mut SoftSpec)) -> TestBed<SoftDevice> {
    let (a, b) = LoopbackLink::pair();
    let device = |name: &str, last: u8, link| {
        let soft_profile = if profile == Profile::Spec { soft::Profile::Spec } else { soft::Profile::Rxe };
        let mut spec = SoftSpec {
            mac: [2, 0, 0, 0, 0, last],
            clock: HostClock::new(),
            profile: soft_profile,
            ..SoftSpec::new(name, LinkSpec::Loopback(link))
        };
        change(&mut spec);
        SoftDevice::new(spec).expect("a software device")
    };
    TestBed { name, profile, kernel: false, a: device("soft0", 1, a), b: device("soft1", 2, b), gid_index: [0; 2] }
}

/// Returns a test bed in which both endpoints are on one software device.
fn soft_alone(name: &'static str, profile: Profile) -> TestBed<SoftDevice> {
    let two = soft(name, profile);
    TestBed { b: two.a.clone(), ..two }
}

/// Real rxe devices.
#[cfg(feature = "ibverbs")]
mod rxe {
    use super::*;
    use dataplane::ibverbs::{VerbsDevice, VerbsProvider};
    use dataplane::verbs::Provider;

    fn bed(name: &'static str, a: &str, b: &str, gid_index: u32) -> TestBed<VerbsDevice> {
        let open = |name| VerbsProvider.open(name).expect("a device that can be opened");
        let a_device = open(a);
        let b_device = if a == b { a_device.clone() } else { open(b) };
        TestBed { name, profile: Profile::Rxe, kernel: true, a: a_device, b: b_device, gid_index: [gid_index; 2] }
    }

    fn cable(name: &'static str) -> TestBed<VerbsDevice> {
        bed(name, "rxe0", "rxe1", 0)
    }

    /// Returns the tests on rxe devices. The tests are reported as ignored unless `included` is set.
    pub(crate) fn tests(included: bool) -> Vec<Test> {
        let mut tests: Vec<Test> = tests_of("rxe::cable", cable, skips::KERNEL).collect();
        tests.extend(tests_of("rxe::alone", |name| bed(name, "rxe2", "rxe2", 1), skips::KERNEL_ALONE));
        // Compare the software device with the kernel driver.
        let beds = || (soft("software device", Profile::Rxe), cable("rxe"));
        tests.push(fuzz_test("rxe::fuzz", beds, (1, 100)));
        if !included {
            let why =
                || Ok(Completion::ignored_with("needs the devices rxe0, rxe1 and rxe2: run tools/vm/check-contract"));
            tests.iter_mut().for_each(|(_, run)| *run = Box::new(why));
        }
        tests
    }
}
