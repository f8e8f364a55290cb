//! Connections and datagrams: a state machine that the devices on one cable share.
//!
//! It has the packets of RoCE, without their bytes: requests are cut by the path MTU and numbered, acknowledged, refused,
//! repeated after a time. It has no thread: whoever posts to or polls a queue on it lets it run until nothing more can
//! happen at this moment, so a passive peer needs to do nothing. Time is the device's clock. With a clock that tests move
//! and faults with a seed, a run is the same every time.
//!
//! One lock is around all of it: this is not the path that packets of a data plane take ([`super::engine`] is).

mod connection;
mod datagram;
mod packet;
mod qp;
mod request;
mod response;
mod send;
mod srq;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(super) use connection::Connection;
use packet::{Body, MULTICAST_QP, Packet};
use qp::Qp;
pub(super) use qp::Receive;
pub use srq::SoftSrq;
use srq::Srq;

use crate::provider::EventKind;
use crate::provider::soft::device::Shared;
use crate::provider::soft::fault::{Faults, Flap};
use crate::units::{Gid, QpNum};

/// What connects queue pairs.
#[derive(Debug)]
pub(super) struct Fabric {
    state: Mutex<State>,
    /// Numbers of whatever is made on its devices.
    numbers: AtomicU32,
}

impl Default for Fabric {
    fn default() -> Self {
        Self { state: Mutex::default(), numbers: AtomicU32::new(0x11) }
    }
}

impl Fabric {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number that nothing on any device here has or had, so that devices may have equal addresses.
    pub(super) fn number(&self) -> u32 {
        self.numbers.fetch_add(1, Ordering::Relaxed) & 0xff_ffff
    }

    /// Lets happen what can happen now.
    pub(super) fn drive(&self) {
        self.lock().run();
    }

    /// Takes a queue pair to ERR that did nothing wrong: a completion queue of its overran.
    pub(super) fn fail(&self, qp: QpNum) {
        let mut state = self.lock();
        state.at(qp, |qp, net| qp.die(net));
        state.run();
    }
}

/// What is on a fabric.
#[derive(Debug, Default)]
struct State {
    qps: BTreeMap<u32, Qp>,
    /// Those that may have something to send, in turn.
    busy: VecDeque<u32>,
    /// Those that wait for a time.
    timed: BTreeSet<u32>,
    groups: Vec<(Gid, QpNum)>,
    srqs: BTreeMap<u32, Srq>,
    net: Net,
}

/// What a queue pair reaches while it works.
#[derive(Debug, Default)]
struct Net {
    /// Packets under way.
    wire: VecDeque<Packet>,
    /// What goes wrong with what comes in at a device, by its number.
    faults: BTreeMap<u32, Faults<Packet>>,
    /// Completion queues that have just overrun.
    overrun: Vec<u32>,
    /// Buffers for payloads.
    spare: Vec<Vec<u8>>,
}

/// Buffers that are kept.
const MOST_SPARE: usize = 64;

impl Net {
    /// An empty buffer.
    fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    fn give_back(&mut self, mut buffer: Vec<u8>) {
        if self.spare.len() < MOST_SPARE {
            buffer.clear();
            self.spare.push(buffer);
        }
    }
}

impl State {
    /// Works at a queue pair; what it has to send is sent by the next [`State::run`].
    fn at<R>(&mut self, number: QpNum, work: impl FnOnce(&mut Qp, &mut Reach<'_>) -> R) -> Option<R> {
        let qp = self.qps.get_mut(&number.0)?;
        let result = work(qp, &mut Reach { net: &mut self.net, srqs: &mut self.srqs });
        if !qp.busy {
            qp.busy = true;
            self.busy.push_back(number.0);
        }
        match qp.deadline() {
            Some(_) => self.timed.insert(number.0),
            None => self.timed.remove(&number.0),
        };
        Some(result)
    }

    /// Runs until nothing more can happen at this moment.
    fn run(&mut self) {
        self.expire();
        for faults in self.net.faults.values_mut() {
            faults.catch_up();
        }
        self.deliver_late();
        self.work();
        // Nothing is under way: nothing is to overtake what was kept back for it.
        for faults in self.net.faults.values_mut() {
            faults.wait();
        }
        self.deliver_late();
        self.work();
    }

    fn work(&mut self) {
        loop {
            if let Some(packet) = self.net.wire.pop_front() {
                self.arrive(packet);
            } else if let Some(number) = self.busy.pop_front() {
                let Some(qp) = self.qps.get_mut(&number) else { continue };
                qp.busy = false;
                if qp.step(&mut Reach { net: &mut self.net, srqs: &mut self.srqs }) {
                    self.at(QpNum(number), |_, _| ());
                } else if qp.deadline().is_some() {
                    self.timed.insert(number);
                } else {
                    self.timed.remove(&number);
                }
            } else {
                return;
            }
            self.overruns();
        }
    }

    /// Wakes the queue pairs whose time has come.
    fn expire(&mut self) {
        let due = |number: &u32| self.qps.get(number).is_none_or(Qp::is_due);
        let due: Vec<u32> = self.timed.iter().copied().filter(due).collect();
        for number in due {
            self.timed.remove(&number);
            self.at(QpNum(number), |qp, net| qp.expire(net));
        }
    }

    /// Queue pairs whose completion queue has overrun fail with it.
    fn overruns(&mut self) {
        while let Some(cq) = self.net.overrun.pop() {
            let reports = |qp: &Qp| qp.send_cq.number == cq || qp.recv_cq.number == cq;
            let numbers: Vec<u32> = self.qps.iter().filter(|(_, qp)| reports(qp)).map(|(number, _)| *number).collect();
            for number in numbers {
                self.at(QpNum(number), |qp, net| qp.die(net));
            }
        }
    }

    /// A packet has come to the end of its way: to one queue pair, or to those of a group.
    fn arrive(&mut self, packet: Packet) {
        if packet.to != MULTICAST_QP || !is_multicast(packet.to_gid) {
            return self.enter(packet);
        }
        let members: Vec<QpNum> =
            self.groups.iter().filter(|(group, _)| *group == packet.to_gid).map(|(_, member)| *member).collect();
        for to in members {
            self.enter(Packet { to, ..packet.clone() });
        }
    }

    /// A packet comes in at a device, where faults may strike it.
    fn enter(&mut self, packet: Packet) {
        let Some(qp) = self.qps.get(&packet.to.0) else { return };
        let device = &qp.shared.device;
        let here = device.owns(packet.to_gid) || is_multicast(packet.to_gid);
        if !here || device.is_gone() || !device.is_up() {
            return;
        }
        let Some(faults) = self.net.faults.get_mut(&device.id) else { return self.deliver(packet) };
        let before = faults.injected;
        faults.arrive(packet);
        qp.shared.counts.faults.add(faults.injected - before);
        if let Some(flap) = faults.flapped() {
            device.raise(if flap == Flap::Down { EventKind::PortErr } else { EventKind::PortActive }, 1);
        }
        let id = device.id;
        while let Some(packet) = self.net.faults.get_mut(&id).and_then(Faults::next) {
            self.deliver(packet);
        }
    }

    /// Delivers what faults have let go of.
    fn deliver_late(&mut self) {
        let devices: Vec<u32> = self.net.faults.keys().copied().collect();
        for id in devices {
            while let Some(packet) = self.net.faults.get_mut(&id).and_then(Faults::next) {
                self.deliver(packet);
            }
        }
    }

    fn deliver(&mut self, packet: Packet) {
        let to = packet.to;
        self.at(to, |qp, net| qp.receive(packet, net));
    }

    /// Faults on order for what comes in at a device.
    fn prepare(&mut self, device: &Arc<Shared>) {
        let faults = device.spec.faults;
        if !faults.spares_queues() {
            let new = || Faults::new(faults, 0, device.spec.clock.clone());
            self.net.faults.entry(device.id).or_insert_with(new);
        }
    }
}

/// What a queue pair reaches while it works: the wire, and the shared receive queues.
struct Reach<'a> {
    net: &'a mut Net,
    srqs: &'a mut BTreeMap<u32, Srq>,
}

impl Packet {
    /// The buffer of its payload.
    fn into_payload(self) -> Option<Vec<u8>> {
        match self.body {
            Body::Part(part) => Some(part.payload),
            Body::ReadData(payload) => Some(payload),
            Body::Datagram(datagram) => Some(datagram.payload),
            _ => None,
        }
    }
}

/// Whether an address is that of a group: of IPv6, or of IPv4 as `::ffff:224.0.0.0/100`.
fn is_multicast(gid: Gid) -> bool {
    let v4_mapped = gid.0[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    gid.0[0] == 0xff || (v4_mapped && gid.0[12] >> 4 == 0xe)
}
