//! One contract for every device: the same program of verbs, and what must come of it.
//!
//! A case is a function that works with two ends ([`bed::Pair`]), tells what it sees line by line, and says what the
//! standard wants. Where a device differs, [`differences`] has the line, what comes instead, and why; a difference that
//! is not there is a failure, and so is one that is there and was not seen.
//!
//! It runs on the software device with both of its profiles, and on real rxe devices where there are any: `rxe0` and
//! `rxe1`, which are joined by a cable, and `rxe2`, which talks to itself. `tools/vm/run` has them.
//!
//! `CONTRACT_CASE=text` runs the cases whose name has that text, and prints what they tell.

mod bed;
mod cases;
mod differences;
mod fuzz;
mod skips;

use std::collections::BTreeMap;

use bed::{Bed, Connection, EndSpec, Of, Outcome, Pair, Profile, Stop};
use dataplane::clock::HostClock;
use dataplane::provider::soft::{self, LinkSpec, LoopbackLink, SoftDevice, SoftSpec};
use dataplane::provider::{Capability, Device, QpType};

/// A case under way.
pub(crate) struct Trial<'a, D: Device> {
    pub(crate) bed: &'a Bed<D>,
    case: &'static str,
    log: Vec<String>,
    checked: bool,
}

/// A case: its name, and what it does.
pub(crate) type Case<D> = (&'static str, fn(&mut Trial<'_, D>) -> Outcome);

impl<D: Device> Trial<'_, D> {
    /// Skips the case unless both devices have this.
    pub(crate) fn need(&self, capability: Capability) -> Outcome {
        let has = |device: &D| device.capabilities().has.contains(&capability);
        if has(&self.bed.a) && has(&self.bed.b) {
            return Ok(());
        }
        Err(Stop::Skip(capability.name().to_owned(), libc::EOPNOTSUPP))
    }

    /// Two queue pairs in RTS, each the other's peer.
    pub(crate) fn pair(&self, kind: QpType) -> Outcome<Pair<D>> {
        self.pair_with(EndSpec::new(kind), Connection::default(), Connection::default())
    }

    pub(crate) fn pair_with(&self, spec: EndSpec, a: Connection, b: Connection) -> Outcome<Pair<D>> {
        Pair::connected(self.bed, spec, a, b)
    }

    /// Two messages there and back between queue pairs of their own: what was sent before has arrived, or is lost.
    pub(crate) fn round_trips(&self) -> Outcome {
        let mut pair = self.pair(QpType::Rc)?;
        for wr_id in 0..2 {
            pair.a.recv(wr_id, 0..10)?;
            pair.b.recv(wr_id, 0..10)?;
        }
        for n in 1..=2 {
            pair.a.send(0, 0..1)?;
            let there = pair.wait(&[(Of::ASent, n), (Of::BReceived, n)])?;
            pair.b.send(0, 0..1)?;
            if !there || !pair.wait(&[(Of::BSent, n), (Of::AReceived, n)])? {
                return Err(Stop::Fail("no round trip".to_owned()));
            }
        }
        Ok(())
    }

    /// Tells something.
    pub(crate) fn say(&mut self, line: impl Into<String>) {
        self.log.push(line.into());
    }

    /// Waits for so many completions, and tells all that came.
    pub(crate) fn see(&mut self, pair: &mut Pair<D>, wanted: &[(Of, usize)]) -> Outcome {
        let all = pair.wait(wanted)?;
        pair.tell(&mut self.log);
        if !all {
            self.log.push(format!("not all came of {wanted:?}"));
        }
        Ok(())
    }

    /// Tells the states of both as their devices have them.
    pub(crate) fn states(&mut self, pair: &Pair<D>) -> Outcome {
        self.log.push(format!("a {}, b {}", pair.a.state()?, pair.b.state()?));
        Ok(())
    }

    /// What the standard wants told, line by line. The end of a case.
    pub(crate) fn expect(&mut self, standard: &str) -> Outcome {
        self.checked = true;
        let standard: Vec<String> =
            standard.lines().map(|line| line.trim().to_owned()).filter(|it| !it.is_empty()).collect();
        let wanted = differences::apply(self.case, self.bed.profile, self.bed.kernel, &standard).map_err(Stop::Fail)?;
        if self.log == wanted {
            return Ok(());
        }
        let mut told = String::new();
        for at in 0..self.log.len().max(wanted.len()) {
            let (got, want) = (self.log.get(at), wanted.get(at));
            let mark = if got == want { ' ' } else { '!' };
            let line = |line: Option<&String>| line.map_or("(nothing)", |line| line).to_owned();
            told += &format!("\n   {mark} {:<58} want: {}", line(got), line(want));
        }
        Err(Stop::Fail(told))
    }
}

/// Runs all cases on a bed.
fn check<D: Device>(bed: &Bed<D>, skips: &[(&str, usize)]) {
    let filter = std::env::var("CONTRACT_CASE").unwrap_or_default();
    let (mut failed, mut skipped, mut passed) = (Vec::new(), BTreeMap::<String, usize>::new(), 0);
    for (case, run) in cases::all::<D>() {
        if !case.contains(&filter) {
            continue;
        }
        // Before it runs: a case that takes the process with it is known by name.
        println!("{} {case}", bed.name);
        let mut trial = Trial { bed, case, log: Vec::new(), checked: false };
        let outcome = run(&mut trial);
        if !filter.is_empty() {
            println!("   {}", trial.log.join("\n   "));
        }
        match outcome {
            Ok(()) if trial.checked => passed += 1,
            Ok(()) => failed.push(format!("{case}: expects nothing")),
            Err(Stop::Skip(capability, errno)) => {
                let why = if errno == 0 { "not in the contract".to_owned() } else { bed::errno_name(errno) };
                println!("{} {case}: skipped: {capability}: {why}", bed.name);
                *skipped.entry(capability).or_default() += 1;
            }
            Err(Stop::Fail(why)) => failed.push(format!("{case}: {why} {}", trial.log.last().map_or("", |it| it))),
        }
    }
    let count: usize = skipped.values().sum();
    println!("{}: {passed} passed, {count} skipped, {} failed", bed.name, failed.len());
    assert!(failed.is_empty(), "{}: {} cases failed:\n{}", bed.name, failed.len(), failed.join("\n"));
    if filter.is_empty() {
        let committed: BTreeMap<String, usize> = skips.iter().map(|(what, n)| ((*what).to_owned(), *n)).collect();
        assert_eq!(skipped, committed, "{}: what is skipped is not what may be", bed.name);
    }
}

#[test]
fn differences_are_of_cases() {
    differences::check_names(&cases::all::<SoftDevice>().iter().map(|(case, _)| *case).collect::<Vec<_>>());
}

/// Two software devices joined by a cable.
fn soft(name: &'static str, profile: Profile) -> Bed<SoftDevice> {
    let (a, b) = LoopbackLink::pair();
    let device = |name: &str, last: u8, link| {
        let ways = if profile == Profile::Spec { soft::Profile::Spec } else { soft::Profile::Rxe };
        let spec = SoftSpec {
            mac: [2, 0, 0, 0, 0, last],
            clock: HostClock::new(),
            profile: ways,
            ..SoftSpec::new(name, LinkSpec::Loopback(link))
        };
        SoftDevice::new(spec).expect("a software device")
    };
    Bed { name, profile, kernel: false, a: device("soft0", 1, a), b: device("soft1", 2, b), gid_index: 0 }
}

/// A software device that talks to itself.
fn soft_alone(name: &'static str, profile: Profile) -> Bed<SoftDevice> {
    let two = soft(name, profile);
    Bed { b: two.a.clone(), ..two }
}

#[test]
fn software_device_as_the_standard() {
    check(&soft("soft", Profile::Spec), skips::SOFT);
}

#[test]
fn software_device_as_rxe() {
    check(&soft("soft as rxe", Profile::Rxe), skips::RXE);
}

#[test]
fn software_device_with_itself() {
    check(&soft_alone("soft, one device", Profile::Spec), skips::SOFT_ALONE);
}

/// The same programs, whether the two ends are on one device or on two.
#[test]
fn fuzz_software_devices() {
    let (two, one) = (soft("two devices", Profile::Rxe), soft_alone("one device", Profile::Rxe));
    fuzz::compare(&two, &one, "fuzz_software_devices", 1000);
}

#[test]
fn fuzz_software_devices_as_the_standard() {
    let (two, one) = (soft("two devices", Profile::Spec), soft_alone("one device", Profile::Spec));
    fuzz::compare(&two, &one, "fuzz_software_devices_as_the_standard", 1000);
}

/// Real devices, where there are any.
#[cfg(feature = "verbs")]
mod rxe {
    use super::*;
    use dataplane::provider::Provider;
    use dataplane::provider::verbs::{VerbsDevice, VerbsProvider};

    /// The devices of `tools/vm/run`. `None`, and a word why, where there are none.
    fn bed(name: &'static str, a: &str, b: &str, gid_index: u32) -> Option<Bed<VerbsDevice>> {
        let there = VerbsProvider.devices().unwrap_or_default();
        for wanted in [a, b] {
            if there.iter().any(|info| info.name == wanted) {
                continue;
            }
            assert!(std::env::var_os("CONTRACT_REQUIRE_RXE").is_none(), "no RDMA device {wanted}");
            println!("{name}: skipped: no RDMA device {wanted} (tools/vm/run has one)");
            return None;
        }
        let open = |name| VerbsProvider.open(name).expect("a device that can be opened");
        let a_device = open(a);
        let b_device = if a == b { a_device.clone() } else { open(b) };
        Some(Bed { name, profile: Profile::Rxe, kernel: true, a: a_device, b: b_device, gid_index })
    }

    #[test]
    fn rxe_over_a_cable() {
        if let Some(bed) = bed("rxe", "rxe0", "rxe1", 0) {
            check(&bed, skips::KERNEL);
        }
    }

    #[test]
    fn rxe_with_itself() {
        if let Some(bed) = bed("rxe, one device", "rxe2", "rxe2", 1) {
            check(&bed, skips::KERNEL_ALONE);
        }
    }

    /// The same programs on the software device and in the kernel.
    #[test]
    fn fuzz_rxe() {
        if let Some(bed) = bed("rxe", "rxe0", "rxe1", 0) {
            fuzz::compare(&soft("software device", Profile::Rxe), &bed, "rxe::fuzz_rxe", 100);
        }
    }
}
