//! The receive queues of a port for raw packets, and the flow rules that direct frames to the queues.
//!
//! If a port has one queue pair, the queue pair itself receives frames, and [`RawQueue`] owns the flow rules. If
//! several workers share a port, each worker has a queue pair for sends and a work queue for receives. When the last
//! work queue is ready, this module creates the flow rules of the port, and RSS distributes frames to all work queues.
//! Before a work queue is removed, this module destroys the flow rules. The port then receives nothing until all work
//! queues are ready again.
//!
//! This module has not been tested on hardware.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ibverbs_sys::{
    IBV_QP_INIT_ATTR_CREATE_FLAGS, IBV_QP_INIT_ATTR_MAX_TSO_HEADER, ibv_context, ibv_cq, ibv_pd, ibv_qp,
    ibv_qp_init_attr_ex, ibv_wq,
};

use super::flow::created_by;
use super::flow::object::Flow;
use super::held_log;
use super::raw::{Offload, qp_flags, set_rate_limit};
use super::rss::{self, RssGroup, WorkQueue, WorkQueueSpec, WqState};
use dataplane_core::error::VerbError;
use dataplane_core::verbs::{FlowError, FlowRule, QpState, RawError, RawPacketCaps, RawSpec};

/// The raw-packet settings of a device, and the state of its ports. All clones share the settings and the ports.
#[derive(Clone, Debug, Default)]
pub(super) struct RawSetup {
    pub(super) spec: Arc<RawSpec>,
    ports: Arc<RawPorts>,
}

impl RawSetup {
    /// Returns a setup with the settings `spec` and the ports of this setup.
    pub(super) fn with_spec(&self, spec: RawSpec) -> Self {
        Self { spec: Arc::new(spec), ports: self.ports.clone() }
    }
}

/// The receive queues of the ports that have several queues, by port number. All queue pairs of the device share this
/// map.
#[derive(Debug, Default)]
struct RawPorts(Mutex<HashMap<u8, PortQueues>>);

/// The receive queues of one port.
#[derive(Debug)]
struct PortQueues {
    /// The RSS objects. `Some` only while all queues are ready. Dropped before the work queues that the RSS objects
    /// use.
    rss_group: Option<RssGroup>,
    queues: Vec<Option<PortQueue>>,
}

#[derive(Clone, Copy, Debug)]
struct PortQueue {
    wq: NonNull<ibv_wq>,
    pd: *mut ibv_pd,
}

// SAFETY: the objects are not bound to a thread. A queue is removed from its port before its objects are destroyed.
unsafe impl Send for PortQueue {}

impl RawPorts {
    fn lock(&self) -> MutexGuard<'_, HashMap<u8, PortQueues>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the queue with index `queue` to a port that has `count` queues. When the last queue is added, the port
    /// starts to receive frames.
    fn join(
        &self,
        context: *mut ibv_context,
        port: u8,
        (queue, count): (u16, u16),
        member: PortQueue,
        spec: &RawSpec,
        caps: &RawPacketCaps,
    ) -> Result<(), RawError> {
        let _hold = held_log::hold();
        let mut groups = self.lock();
        let new = || PortQueues { rss_group: None, queues: vec![None; count.into()] };
        let group = groups.entry(port).or_insert_with(new);
        let queues = group.queues.len() as u64;
        RawError::check_range("number of queues of the port", count.into(), queues, queues)?;
        let place = group.queues.get_mut(usize::from(queue)).filter(|place| place.is_none());
        // Refuse an index that is already in use or out of range.
        *place.ok_or(VerbError::new("ibv_create_rwq_ind_table", libc::EEXIST))? = Some(member);
        let all: Option<Vec<PortQueue>> = group.queues.iter().copied().collect();
        let Some(all) = all else { return Ok(()) };
        let wqs: Vec<NonNull<ibv_wq>> = all.iter().map(|member| member.wq).collect();
        let rules: Vec<FlowRule> = spec.rules.iter().map(|rule| FlowRule { port, ..rule.clone() }).collect();
        // SAFETY: a queue is removed from the port before its work queue and its protection domain are destroyed. The
        // removal also destroys the RSS objects.
        let rss_group = unsafe { RssGroup::create(context, all[0].pd, &wqs, &spec.rss, &rules, caps) };
        match rss_group {
            Ok(rss_group) => group.rss_group = Some(rss_group),
            Err(error) => {
                group.queues[usize::from(queue)] = None;
                return Err(error);
            }
        }
        Ok(())
    }

    fn leave(&self, port: u8, queue: u16) {
        let _hold = held_log::hold();
        let mut groups = self.lock();
        let Some(group) = groups.get_mut(&port) else { return };
        group.rss_group = None;
        group.queues[usize::from(queue)] = None;
        if group.queues.iter().all(Option::is_none) {
            groups.remove(&port);
        }
    }
}

/// The receive side of a raw-packet queue pair.
#[derive(Debug)]
pub(super) struct RawQueue {
    // These fields are dropped in this order. `drop` first removes the queue from its port.
    flows: Vec<Flow>,
    wq: Option<WorkQueue>,
    /// The creation flags of a queue pair that has its own receive queue: `enum ibv_qp_create_flags`.
    flags: u32,
    pd: *mut ibv_pd,
    context: *mut ibv_context,
    ports: Arc<RawPorts>,
    spec: Arc<RawSpec>,
    caps: RawPacketCaps,
    /// The index of the queue, and the number of queues of the port.
    queue: (u16, u16),
    /// The port from which the queue currently receives, if any.
    on: Option<u8>,
}

// SAFETY: none of the objects is bound to a thread.
unsafe impl Send for RawQueue {}

impl RawQueue {
    /// Prepares the receive side. If the port has several queues, the receive side is a work queue with `depth`
    /// receives, and the queue pair has no receive queue.
    ///
    /// # Errors
    /// The device does not support the settings, or a work queue cannot be created.
    ///
    /// # Safety
    /// The protection domain and the completion queue must belong to the context. The context, the protection domain
    /// and the completion queue must outlive the returned value.
    pub(super) unsafe fn create(
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        cq: *mut ibv_cq,
        RawSetup { spec, ports }: &RawSetup,
        caps: RawPacketCaps,
        queue: (u16, u16),
        (depth, sges): (u32, u32),
    ) -> Result<Self, RawError> {
        rss::check(spec, &caps, queue.1)?;
        let mut counters = spec.rules.iter().filter_map(|rule| rule.count.as_ref());
        if counters.any(|counters| !created_by(context, counters.as_ref())) {
            return Err(FlowError::OtherDevice.into());
        }
        RawError::check_range("queue index of the port", queue.0.into(), 0, u64::from(queue.1).saturating_sub(1))?;
        let wq = if queue.1 > 1 {
            let wq_spec = WorkQueueSpec { depth, sges, receive: spec.receive };
            // SAFETY: the caller upholds the safety contract.
            Some(unsafe { WorkQueue::create(context, pd, cq, wq_spec, &caps)? })
        } else {
            None
        };
        let flags = if wq.is_some() { 0 } else { qp_flags(spec.receive)? };
        Ok(Self {
            flows: Vec::new(),
            wq,
            flags,
            pd,
            context,
            ports: ports.clone(),
            spec: spec.clone(),
            caps,
            queue,
            on: None,
        })
    }

    /// Adds the receive offloads, and the header length for segmented sends, to the attributes with which the queue
    /// pair is created.
    pub(super) fn prepare(&self, attr: &mut ibv_qp_init_attr_ex) {
        if self.flags != 0 {
            attr.comp_mask |= IBV_QP_INIT_ATTR_CREATE_FLAGS;
            attr.create_flags |= self.flags;
        }
        if self.spec.max_tso_header != 0 {
            attr.comp_mask |= IBV_QP_INIT_ATTR_MAX_TSO_HEADER;
            attr.max_tso_header = self.spec.max_tso_header;
        }
    }

    /// Returns the send offloads of the queue pair.
    pub(super) fn offload(&self) -> Offload {
        Offload {
            checksum: self.caps.tx_checksum,
            checksum_runs: self.spec.checksum,
            tso_header: self.spec.max_tso_header,
            tso_payload: self.caps.max_tso,
        }
    }

    /// Returns the work queue to which receives are posted, or `None` if the queue pair itself receives.
    pub(super) fn work_queue(&self) -> Option<&WorkQueue> {
        self.wq.as_ref()
    }

    /// Applies a state change of the queue pair to the receive side. Receives may be posted after the change to INIT,
    /// and frames arrive after the change to RTR. ERR flushes the posted receives, and RESET discards the posted
    /// receives. The rate limit is set at the change to RTS.
    ///
    /// # Errors
    /// A flow rule or a rate is invalid, or a verb failed.
    ///
    /// # Safety
    /// This value must have been created for the queue pair `qp`, and `port` must be the port of the queue pair.
    pub(super) unsafe fn apply_state(&mut self, qp: NonNull<ibv_qp>, port: u8, state: QpState) -> Result<(), RawError> {
        match state {
            QpState::Reset | QpState::Err => {
                // A queue pair without a work queue keeps its flow rules, because the queue pair receives nothing in
                // these states.
                if let Some(wq) = &mut self.wq {
                    let to = if state == QpState::Err { WqState::Err } else { WqState::Reset };
                    leave(&self.ports, &mut self.on, self.queue);
                    wq.set_state(to)?;
                }
                Ok(())
            }
            QpState::Init => match &mut self.wq {
                Some(wq) if self.on.is_none() => Ok(wq.set_state(WqState::Ready)?),
                _ => Ok(()),
            },
            // SAFETY: the caller upholds the safety contract.
            QpState::Rtr => unsafe { self.receive(qp, port) },
            QpState::Rts => match &self.spec.rate {
                // SAFETY: the caller upholds the safety contract.
                Some(rate) => unsafe { set_rate_limit(rate, qp.as_ptr(), &self.caps) },
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// Starts to receive frames. If the port has several queues, this queue joins the queues of the port. A single
    /// queue creates the flow rules itself.
    ///
    /// # Safety
    /// Same as [`RawQueue::apply_state`].
    unsafe fn receive(&mut self, qp: NonNull<ibv_qp>, port: u8) -> Result<(), RawError> {
        if self.on == Some(port) {
            return Ok(());
        }
        if let Some(wq) = &self.wq {
            let member = PortQueue { wq: wq.as_ptr(), pd: self.pd };
            self.ports.join(self.context, port, self.queue, member, &self.spec, &self.caps)?;
        } else {
            self.flows.clear();
            let rules = self.spec.rules.iter().map(|rule| FlowRule { port, ..rule.clone() });
            // SAFETY: the caller upholds the safety contract. The queue pair outlives the flow rules.
            self.flows =
                rules.map(|rule| unsafe { Flow::create(qp, &rule, &self.caps.flow) }).collect::<Result<_, _>>()?;
        }
        self.on = Some(port);
        Ok(())
    }

    /// Destroys the receive side. The queue first leaves its port, so no more frames arrive.
    ///
    /// # Errors
    /// The work queue cannot be destroyed, for example because an object that uses it still exists. The device may then
    /// still write to the memory of posted receives.
    pub(super) fn destroy(mut self) -> Result<(), VerbError> {
        self.flows.clear();
        let Some(wq) = self.wq.take() else { return Ok(()) };
        leave(&self.ports, &mut self.on, self.queue);
        wq.destroy()
    }
}

fn leave(ports: &RawPorts, on: &mut Option<u8>, (queue, _): (u16, u16)) {
    if let Some(port) = on.take() {
        ports.leave(port, queue);
    }
}

impl Drop for RawQueue {
    fn drop(&mut self) {
        if self.wq.is_some() {
            leave(&self.ports, &mut self.on, self.queue);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use ibverbs_sys::{ibv_qp_init_attr, ibv_qp_type};

    use super::*;
    use crate::fake::flow::MULTICAST_TABLE;
    use crate::fake::{Call, Fake};
    use crate::ffi;
    use crate::{flow, raw};
    use dataplane_core::verbs::{
        EthernetMatch, FlowTraffic, HeaderMatch, IpMatch, Ipv4Match, Ipv6Match, MaskedValue, RawReceive, RssCaps,
        TunnelMatch,
    };

    const CAPS: RawPacketCaps = RawPacketCaps {
        flow: flow::driver::MLX5,
        flow_rules: true,
        rx_checksum: false,
        tx_checksum: false,
        vlan_strip: true,
        scatter_fcs: true,
        delay_drop: false,
        max_tso: 0,
        pacing: None,
        rss: Some(RssCaps { max_tables: 8, max_table_size: 8, max_work_queues: 8, fields: 0xff }),
    };

    /// A queue pair with its receive side. The fields are destroyed in this order.
    struct TestQueue {
        raw: Option<RawQueue>,
        qp: NonNull<ibv_qp>,
        cq: NonNull<ibv_cq>,
    }

    impl TestQueue {
        fn create(fake: &Fake, setup: &RawSetup, spec: RawSpec, queue: (u16, u16)) -> Result<Self, RawError> {
            let (context, pd) = (fake.context(), fake.pd().as_ptr());
            // SAFETY: the objects belong to the same device and are destroyed before it.
            unsafe {
                let cq = ffi::ibv_create_cq(fake.context(), 8, ptr::null_mut(), ptr::null_mut(), 0).unwrap();
                let raw = RawQueue::create(context, pd, cq.as_ptr(), &setup.with_spec(spec), CAPS, queue, (16, 1));
                let raw = match raw {
                    Ok(raw) => raw,
                    Err(error) => {
                        ffi::ibv_destroy_cq(cq.as_ptr()).unwrap();
                        return Err(error);
                    }
                };
                let mut attr = ibv_qp_init_attr { qp_type: ibv_qp_type::IBV_QPT_RAW_PACKET, ..Default::default() };
                let qp = ffi::ibv_create_qp(pd, &mut attr).unwrap();
                Ok(Self { raw: Some(raw), qp, cq })
            }
        }

        fn apply_state(&mut self, state: QpState) -> Result<(), RawError> {
            // SAFETY: the receive side belongs to this queue pair.
            unsafe { self.raw.as_mut().unwrap().apply_state(self.qp, 1, state) }
        }
    }

    impl Drop for TestQueue {
        fn drop(&mut self) {
            self.raw = None;
            // SAFETY: the objects are valid and are not used again.
            unsafe {
                ffi::ibv_destroy_qp(self.qp.as_ptr()).unwrap();
                ffi::ibv_destroy_cq(self.cq.as_ptr()).unwrap();
            }
        }
    }

    fn flows(calls: &[Call]) -> usize {
        calls.iter().filter(|call| matches!(call, Call::CreateFlow { .. })).count()
    }

    #[test]
    fn single_queue_creates_its_own_rules_at_rtr() {
        let fake = Fake::new(|_| {});
        let setup = RawSetup::default();
        let receive = RawReceive { vlan_strip: true, scatter_fcs: true, ..RawReceive::default() };
        let spec = RawSpec { receive, ..RawSpec::default() };
        let mut test_queue = TestQueue::create(&fake, &setup, spec, (0, 1)).unwrap();
        let mut attr = ibv_qp_init_attr_ex::default();
        test_queue.raw.as_ref().unwrap().prepare(&mut attr);
        assert_eq!((attr.comp_mask, attr.create_flags), (IBV_QP_INIT_ATTR_CREATE_FLAGS, 1 << 8 | 1 << 9));
        test_queue.apply_state(QpState::Init).unwrap();
        assert_eq!(flows(&fake.calls()), 0);
        for state in [QpState::Rtr, QpState::Rts, QpState::Err, QpState::Reset, QpState::Init, QpState::Rtr] {
            test_queue.apply_state(state).unwrap();
        }
        assert_eq!(flows(&fake.calls()), 1, "the rules stay with the queue pair");
        drop(test_queue);
        assert_eq!(fake.calls()[..2], [Call::DestroyFlow(1), Call::DestroyQp(1)]);
        assert_eq!(fake.live(), 0);
    }

    #[test]
    fn rules_exist_only_while_all_queues_are_ready() {
        let fake = Fake::new(|_| {});
        let setup = RawSetup::default();
        let mut queues: Vec<TestQueue> =
            (0..3).map(|at| TestQueue::create(&fake, &setup, RawSpec::default(), (at, 3)).unwrap()).collect();
        for test_queue in &mut queues {
            assert_eq!(flows(&fake.calls()), 0);
            test_queue.apply_state(QpState::Init).unwrap();
            test_queue.apply_state(QpState::Rtr).unwrap();
        }
        let calls = fake.calls();
        assert_eq!(flows(&calls), 7);
        let filled = vec![1, 2, 3, 1, 2, 3, 1, 2];
        assert!(calls.contains(&Call::CreateTable { log_size: 3, wqs: filled, comp_mask: 0 }), "{calls:?}");
        queues[1].apply_state(QpState::Err).unwrap();
        let calls = fake.calls();
        assert!(matches!(calls[0], Call::DestroyFlow(_)), "{calls:?}");
        let err = Call::ModifyWq { wq: 2, mask: 1, state: 2, current: 0, flags: 0, flags_mask: 0 };
        assert_eq!(calls.last(), Some(&err), "the rules are destroyed before the work queue moves to ERR");
        for state in [QpState::Reset, QpState::Init, QpState::Rtr] {
            queues[1].apply_state(state).unwrap();
        }
        assert_eq!(flows(&fake.calls()), 7, "all queues are ready again");
        drop(queues);
        let calls = fake.calls();
        let at = |wanted: fn(&Call) -> bool| calls.iter().position(wanted).unwrap();
        assert!(at(|call| matches!(call, Call::DestroyTable(_))) < at(|call| matches!(call, Call::DestroyWq(_))));
        assert_eq!(fake.live(), 0);
        assert!(setup.ports.lock().is_empty());
    }

    #[test]
    fn queue_index_is_used_once_and_freed_after_a_failure() {
        let fake = Fake::new(|_| {});
        let setup = RawSetup::default();
        let mut first = TestQueue::create(&fake, &setup, RawSpec::default(), (0, 2)).unwrap();
        let mut same = TestQueue::create(&fake, &setup, RawSpec::default(), (0, 2)).unwrap();
        let mut other = TestQueue::create(&fake, &setup, RawSpec::default(), (1, 3)).unwrap();
        let mut second = TestQueue::create(&fake, &setup, RawSpec::default(), (1, 2)).unwrap();
        assert!(TestQueue::create(&fake, &setup, RawSpec::default(), (2, 2)).is_err());
        first.apply_state(QpState::Rtr).unwrap();
        let taken = same.apply_state(QpState::Rtr).unwrap_err();
        assert_eq!(taken, RawError::Verb(VerbError::new("ibv_create_rwq_ind_table", libc::EEXIST)));
        assert!(
            other
                .apply_state(QpState::Rtr)
                .unwrap_err()
                .to_string()
                .contains("number of queues of the port: 3 is not in the range")
        );
        fake.refuse("ibv_create_flow", libc::EPERM);
        let error = second.apply_state(QpState::Rtr).unwrap_err();
        assert!(error.to_string().contains("CAP_NET_RAW"), "{error}");
        assert_eq!(raw::verb_error(&error, "fake"), VerbError::new("ibv_create_flow", libc::EPERM));
        fake.refuse("ibv_create_flow", 0);
        second.apply_state(QpState::Rtr).unwrap();
        drop((same, other));
        assert!(setup.ports.lock()[&1].rss_group.is_some(), "dropping a queue that never joined changes nothing");
        drop((first, second));
        assert_eq!(fake.live(), 0);
    }

    /// Rules that the mlx5 driver of the kernel refuses with `EOPNOTSUPP` or `ENOMEM`.
    #[test]
    fn error_names_the_field_that_mlx5_cannot_match() {
        let mlx5 = RawPacketCaps { flow: flow::limits("mlx5"), ..CAPS };
        let other = RawPacketCaps { flow: flow::limits("irdma"), ..CAPS };
        let with = |rule: FlowRule| RawSpec { rules: vec![rule], ..RawSpec::default() };
        let matching = |ip, tunnel| {
            let outer = HeaderMatch { ip: Some(ip), ..HeaderMatch::default() };
            let tunnel = Option::map(tunnel, |tunnel| (tunnel, HeaderMatch::default()));
            with(FlowRule::new(FlowTraffic::Headers { outer, tunnel }))
        };
        let v4 = |v4| IpMatch::V4(v4);
        let v6 = |v6| IpMatch::V6(v6);
        let (ipv4, ipv6) = (Ipv4Match::default(), Ipv6Match::default());
        let gre = |flags| TunnelMatch::Gre { flags, protocol: 0x0800.into(), key: MaskedValue::ANY };
        for (spec, field) in [
            (matching(v4(Ipv4Match { ttl: 1.into(), ..ipv4 }), None), "ipv4 ttl"),
            (matching(v4(Ipv4Match { flags: 2.into(), ..ipv4 }), None), "ipv4 flags"),
            (matching(v6(Ipv6Match { hop_limit: 255.into(), ..ipv6 }), None), "ipv6 hop_limit"),
            (matching(v4(ipv4), Some(gre(0x2000.into()))), "gre flags"),
        ] {
            let error = spec.check(&mlx5, 1).unwrap_err().to_string();
            assert!(error.starts_with(&format!("mlx5 cannot match {field}; help: ")), "{error}");
            assert_eq!(spec.check(&other, 1), Ok(()));
        }
        let tos = matching(v4(Ipv4Match { tos: 184.into(), ..ipv4 }), Some(gre(MaskedValue::ANY)));
        assert_eq!(tos.check(&mlx5, 1), Ok(()));
        // With several queues, each priority of a rule needs three priorities of the device.
        let at = |priority| with(FlowRule { priority, ..FlowRule::new(FlowTraffic::ANY_HEADERS) });
        assert_eq!((at(15).check(&mlx5, 1), at(4).check(&mlx5, 2)), (Ok(()), Ok(())));
        for (priority, queues, last) in [(16, 1, 15), (5, 2, 4), (21_844, 2, 4)] {
            let error = at(priority).check(&mlx5, queues).unwrap_err().to_string();
            let expected = format!("flow priority {priority} is too large: mlx5 has the priorities 0 to {last} for ");
            assert!(error.starts_with(&format!("{expected}{queues}")), "{error}");
        }
        assert_eq!(at(21_844).check(&other, 2), Ok(()));
        assert!(at(21_845).check(&other, 2).is_err());
    }

    fn matching(outer: HeaderMatch) -> FlowRule {
        FlowRule { priority: 1, ..FlowRule::new(FlowTraffic::Headers { outer, tunnel: None }) }
    }

    /// mlx5 places a rule into its last table if the first header of the rule selects multicast. Every other rule would
    /// then apply before this rule, whatever the priorities of the rules are.
    #[test]
    fn multicast_rule_keeps_its_priority_on_mlx5() {
        let group = EthernetMatch { dst: [1, 0x80, 0xc2, 0, 0, 0xe].into(), ..EthernetMatch::default() };
        let ipv4 = |dst| Some(IpMatch::V4(Ipv4Match { dst, ..Ipv4Match::default() }));
        let all_groups = MaskedValue::prefix([224, 0, 0, 0], 4);
        for outer in [
            HeaderMatch { ethernet: Some(group), ..HeaderMatch::default() },
            HeaderMatch { ethernet: Some(group), ip: ipv4(all_groups), ..HeaderMatch::default() },
            HeaderMatch { ip: ipv4(MaskedValue::exact([224, 0, 0, 5])), ..HeaderMatch::default() },
            HeaderMatch { ip: ipv4(all_groups), ..HeaderMatch::default() },
        ] {
            for rule in [matching(outer), FlowRule { drop: true, ..matching(outer) }] {
                let fake = Fake::new(|_| {});
                let spec = RawSpec { rules: vec![rule.clone()], ..RawSpec::default() };
                let setup = RawSetup::default();
                let mut single = TestQueue::create(&fake, &setup, spec.clone(), (0, 1)).unwrap();
                single.apply_state(QpState::Rtr).unwrap();
                assert_eq!(fake.flow_tables(), [3], "{rule:?}");
                drop(single);
                let setup = RawSetup::default();
                let mut queues: Vec<TestQueue> =
                    (0..2).map(|at| TestQueue::create(&fake, &setup, spec.clone(), (at, 2)).unwrap()).collect();
                queues.iter_mut().for_each(|queue| queue.apply_state(QpState::Rtr).unwrap());
                let tables = fake.flow_tables();
                assert!(!tables.is_empty() && tables.iter().all(|table| *table < MULTICAST_TABLE), "{tables:?}");
                assert!(
                    tables.is_sorted() && tables[0] < *tables.last().unwrap(),
                    "classes keep their order: {tables:?}"
                );
            }
        }
    }

    /// A rule for several queues is split into parts. With `dont_trap`, each part would pass the frame on to the next
    /// part, which would deliver the frame again.
    #[test]
    fn dont_trap_with_several_queues_needs_a_single_traffic_class() {
        let fake = Fake::new(|_| {});
        let ipv4 = |protocol| Some(IpMatch::V4(Ipv4Match { protocol, ..Ipv4Match::default() }));
        let udp = Some(dataplane_core::verbs::TransportMatch::Udp(Default::default()));
        let lldp = EthernetMatch { ether_type: 0x88cc.into(), ..EthernetMatch::default() };
        let any = HeaderMatch::default();
        for (outer, works) in [
            (any, false),
            (HeaderMatch { ethernet: Some(EthernetMatch::default()), ..any }, false),
            (HeaderMatch { ip: ipv4(MaskedValue::ANY), ..any }, false),
            (HeaderMatch { ip: ipv4(MaskedValue::ANY), transport: udp, ..any }, true),
            (HeaderMatch { ip: ipv4(89.into()), ..any }, true),
            (HeaderMatch { ethernet: Some(lldp), ..any }, true),
        ] {
            let rule = FlowRule { dont_trap: true, ..matching(outer) };
            let spec = RawSpec { rules: vec![matching(any), rule], ..RawSpec::default() };
            let setup = RawSetup::default();
            assert!(TestQueue::create(&fake, &setup, spec.clone(), (0, 1)).is_ok(), "one queue: {outer:?}");
            match TestQueue::create(&fake, &setup, spec, (0, 2)) {
                Ok(_) => assert!(works, "{outer:?}"),
                Err(error) => {
                    assert!(!works, "{outer:?}");
                    assert!(error.to_string().contains("dont_trap") && error.to_string().contains("help: "), "{error}");
                }
            }
        }
        assert_eq!(fake.live(), 0);
    }

    #[test]
    fn unsupported_setting_is_refused_before_a_queue_is_created() {
        let fake = Fake::new(|_| {});
        let setup = RawSetup::default();
        let receive = RawReceive { delay_drop: true, ..RawReceive::default() };
        let spec = RawSpec { receive, ..RawSpec::default() };
        for queue in [(0, 1), (0, 2)] {
            let error = TestQueue::create(&fake, &setup, spec.clone(), queue).err().unwrap();
            assert!(error.to_string().contains("delay drop"), "{error}");
            assert_eq!(raw::verb_error(&error, "fake"), VerbError::new("ibv_create_qp", libc::EOPNOTSUPP));
        }
        assert_eq!(fake.live(), 0);
    }
}
