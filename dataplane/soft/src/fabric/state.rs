//! The state machine of a fabric.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::context::{FabricContext, Net};
use super::packet::{MULTICAST_QP, Packet, is_multicast};
use super::qp::Qp;
use super::srq::Srq;
use crate::fault::{Faults, Flap};
use crate::shared::Shared;
use dataplane_core::units::{Gid, QpNum};
use dataplane_core::verbs::EventKind;

/// The state of the timer thread of a fabric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Timer {
    /// The thread was not started.
    #[default]
    Stopped,
    /// The thread waits until this time. With `None`, the thread waits until a timer or a delayed packet is added.
    Waits(Option<Instant>),
    /// The fabric is gone, and the thread ends.
    Ends,
}

/// The state of a fabric.
#[derive(Debug, Default)]
pub(super) struct FabricState {
    pub(super) qps: BTreeMap<u32, Qp>,
    /// The numbers of the queue pairs that may have packets to send, in round-robin order.
    busy: VecDeque<u32>,
    /// The numbers of the queue pairs with a running timer.
    timed: BTreeSet<u32>,
    /// The members of multicast groups: the address of a group, and a queue pair that joined the group.
    pub(super) groups: Vec<(Gid, QpNum)>,
    pub(super) srqs: BTreeMap<u32, Srq>,
    net: Net,
    pub(super) timer: Timer,
}

impl FabricState {
    /// Returns the time at which the first timer expires or the first delayed packet arrives. Timers of virtual clocks
    /// are excluded. Such a timer expires in the first [`FabricState::run`] after the clock was advanced.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let timers = self.timed.iter().filter_map(|number| self.qps.get(number)?.time_left());
        let delays = self.net.faults.values().filter_map(Faults::time_left);
        let left = timers.chain(delays).min()?;
        Some(Instant::now() + Duration::from_nanos(left.0))
    }

    /// Runs `work` on a queue pair, and marks the queue pair as busy. The next [`FabricState::run`] sends the packets
    /// of busy queue pairs.
    pub(super) fn at<R>(
        &mut self,
        number: QpNum,
        work: impl FnOnce(&mut Qp, &mut FabricContext<'_>) -> R,
    ) -> Option<R> {
        let qp = self.qps.get_mut(&number.0)?;
        let result = work(qp, &mut FabricContext { net: &mut self.net, srqs: &mut self.srqs });
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

    /// Runs the state machine until nothing more can happen at this time.
    pub(super) fn run(&mut self) {
        self.expire();
        for faults in self.net.faults.values_mut() {
            faults.release_delayed();
        }
        self.deliver_late();
        self.process();
        // No packet is in transit, so no packet can overtake the packets that are held back for reordering. Count an
        // idle poll, because these packets are released after several idle polls.
        for faults in self.net.faults.values_mut() {
            faults.idle_poll();
        }
        self.deliver_late();
        self.process();
    }

    fn process(&mut self) {
        loop {
            if let Some(packet) = self.net.wire.pop_front() {
                self.arrive(packet);
            } else if let Some(number) = self.busy.pop_front() {
                let Some(qp) = self.qps.get_mut(&number) else { continue };
                qp.busy = false;
                if qp.step(&mut FabricContext { net: &mut self.net, srqs: &mut self.srqs }) {
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

    /// Handles the expired timers.
    fn expire(&mut self) {
        let due = |number: &u32| self.qps.get(number).is_none_or(Qp::is_due);
        let due: Vec<u32> = self.timed.iter().copied().filter(due).collect();
        for number in due {
            self.timed.remove(&number);
            self.at(QpNum(number), |qp, net| qp.expire(net));
        }
    }

    /// Moves the queue pairs of overrun completion queues to ERR.
    fn overruns(&mut self) {
        while let Some(cq) = self.net.overrun.pop() {
            let reports = |qp: &Qp| qp.send_cq.number == cq || qp.recv_cq.number == cq;
            let numbers: Vec<u32> = self.qps.iter().filter(|(_, qp)| reports(qp)).map(|(number, _)| *number).collect();
            for number in numbers {
                self.at(QpNum(number), |qp, net| qp.fail_by_overrun(net));
            }
        }
    }

    /// Handles a packet at its destination: one queue pair, or the members of a multicast group.
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

    /// Handles a packet that arrives at a device, and applies the injected faults of the device.
    fn enter(&mut self, packet: Packet) {
        let Some(qp) = self.qps.get(&packet.to.0) else { return };
        let device = &qp.shared.device;
        let (multicast, route) = (is_multicast(packet.to_gid), packet.route);
        let gid_is_here = !route.global || multicast || device.owns(packet.to_gid);
        let lid_is_here = !device.port.is_infiniband() || multicast || device.port.has_lid(route.dlid);
        let here = gid_is_here && lid_is_here;
        if !here || device.is_gone() || !device.is_up() {
            return;
        }
        let Some(faults) = self.net.faults.get_mut(&device.id()) else { return self.deliver(packet) };
        let before = faults.injected;
        faults.arrive(packet);
        qp.shared.counts.faults.add(faults.injected - before);
        if let Some(flap) = faults.flapped() {
            device.raise(if flap == Flap::Down { EventKind::PortErr } else { EventKind::PortActive }, 1);
        }
        if faults.removes_device {
            device.remove();
        }
        let id = device.id();
        while let Some(packet) = self.net.faults.get_mut(&id).and_then(Faults::next) {
            self.deliver(packet);
        }
    }

    /// Delivers the packets that the injected faults held back and have now released.
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

    /// Prepares the injected faults of a device.
    pub(super) fn prepare(&mut self, device: &Arc<Shared>) {
        let faults = device.faults;
        if !faults.no_queue_faults() {
            let new = || Faults::new(faults, 0, device.clock.clone());
            self.net.faults.entry(device.id()).or_insert_with(new);
        }
    }
}
