//! The queues of a port of raw packets, and the rules that bring frames to them.
//!
//! A queue pair that is alone on its port receives by itself, and its rules are its own. Where several workers share a
//! port, each has a queue pair to send and a work queue to receive; when the last of them is ready to receive, the rules
//! of the port are made, and frames are spread over all. When one of them goes, the rules go first, and nothing is
//! received until all are there again.
//!
//! Not run on hardware.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ibverbs_sys::{
    IBV_QP_INIT_ATTR_CREATE_FLAGS, IBV_QP_INIT_ATTR_MAX_TSO_HEADER, ibv_context, ibv_cq, ibv_pd, ibv_qp,
    ibv_qp_init_attr_ex, ibv_wq,
};

use super::{Offload, RateLimit, RawError, RawPacketCaps, RawReceive, range};
use crate::error::VerbError;
use crate::provider::verbs::flow::{Flow, FlowRule, FlowTraffic};
use crate::provider::verbs::rss::{Spread, WorkQueue, WorkQueueSpec, WqState};
use crate::provider::{QpState, RssSpec, SendFlags};

/// What a port does with raw packets. Not run on hardware.
#[derive(Clone, Debug)]
pub struct RawSpec {
    /// What receiving does to frames.
    pub receive: RawReceive,
    /// How frames are spread over the queues of a port.
    pub rss: RssSpec,
    /// Which frames are received. Their port is that of the queue pair.
    pub rules: Vec<FlowRule>,
    /// The longest headers of sends that the device cuts into segments, in bytes; 0: there are no such sends. It costs
    /// room in the send queue.
    pub tso_header: u16,
    /// Whether runs of sends get the checksums of IPv4 and of TCP or UDP from the device. Sends of lists say so themselves.
    pub checksum: bool,
    /// What sends are slowed down to. It holds from RTS on.
    pub rate: Option<RateLimit>,
}

impl Default for RawSpec {
    /// Every frame, as it is.
    fn default() -> Self {
        let rules = vec![FlowRule::new(FlowTraffic::ALL)];
        Self {
            receive: RawReceive::default(),
            rss: RssSpec::STANDARD,
            rules,
            tso_header: 0,
            checksum: false,
            rate: None,
        }
    }
}

impl RawSpec {
    /// Checks that a device can do it with so many queues, as far as can be said before a queue is made.
    ///
    /// # Errors
    /// The first thing that it cannot.
    pub(in crate::provider::verbs) fn check(&self, caps: &RawPacketCaps, queues: u16) -> Result<(), RawError> {
        self.receive.check(caps)?;
        if self.tso_header != 0 && caps.max_tso == 0 {
            return Err(super::lacks("segmentation", "leave out the room for its headers"));
        }
        if self.checksum && !caps.ip_checksum {
            return Err(super::lacks("checksums of raw packets", "leave them out: the stages keep them right"));
        }
        if let Some(rate) = &self.rate {
            rate.check(caps)?;
        }
        if queues == 1 {
            self.receive.qp_flags()?;
        } else if caps.rss.is_none() {
            return Err(super::lacks("spreading of raw packets", "receive on one queue"));
        }
        self.rules.iter().try_for_each(|rule| rule.encode().map(drop))?;
        Ok(())
    }
}

/// The ports of a device as far as raw packets go. Shared by all its queue pairs.
#[derive(Debug, Default)]
pub(in crate::provider::verbs) struct RawPorts(Mutex<HashMap<u8, Group>>);

/// The queues of one port.
#[derive(Debug)]
struct Group {
    /// What frames are spread by, while all are there. Dropped before anything that it uses.
    spread: Option<Spread>,
    queues: Vec<Option<Member>>,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    wq: NonNull<ibv_wq>,
    pd: *mut ibv_pd,
}

// SAFETY: the objects belong to no thread, and members leave before they end.
unsafe impl Send for Member {}

impl RawPorts {
    fn lock(&self) -> MutexGuard<'_, HashMap<u8, Group>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a queue at its place; with the last one frames begin to come.
    fn join(
        &self,
        context: *mut ibv_context,
        port: u8,
        (queue, of): (u16, u16),
        member: Member,
        spec: &RawSpec,
        caps: &RawPacketCaps,
    ) -> Result<(), RawError> {
        let Some(rss) = caps.rss else {
            return Err(super::lacks("spreading of raw packets", "receive on one queue"));
        };
        let mut groups = self.lock();
        let new = || Group { spread: None, queues: vec![None; of.into()] };
        let group = groups.entry(port).or_insert_with(new);
        range("queues of the port", of.into(), group.queues.len() as u64, group.queues.len() as u64)?;
        let place = group.queues.get_mut(usize::from(queue)).filter(|place| place.is_none());
        // Two with one place, or a place beyond the last.
        *place.ok_or(VerbError::new("ibv_create_rwq_ind_table", libc::EEXIST))? = Some(member);
        let all: Option<Vec<Member>> = group.queues.iter().copied().collect();
        let Some(all) = all else { return Ok(()) };
        let wqs: Vec<NonNull<ibv_wq>> = all.iter().map(|member| member.wq).collect();
        let rules: Vec<FlowRule> = spec.rules.iter().map(|rule| FlowRule { port, ..rule.clone() }).collect();
        // SAFETY: each member leaves before its work queue and its domain end, and takes the spread with it.
        let spread = unsafe { Spread::create(context, all[0].pd, &wqs, &spec.rss, &rules, &rss) };
        match spread {
            Ok(spread) => group.spread = Some(spread),
            Err(error) => {
                group.queues[usize::from(queue)] = None;
                return Err(error);
            }
        }
        Ok(())
    }

    fn leave(&self, port: u8, queue: u16) {
        let mut groups = self.lock();
        let Some(group) = groups.get_mut(&port) else { return };
        group.spread = None;
        group.queues[usize::from(queue)] = None;
        if group.queues.iter().all(Option::is_none) {
            groups.remove(&port);
        }
    }
}

/// How a queue pair of raw packets receives.
#[derive(Debug)]
pub(in crate::provider::verbs) struct RawQueue {
    // Dropped in this order, after the place was left.
    flows: Vec<Flow>,
    wq: Option<WorkQueue>,
    /// Of a queue pair that receives by itself: `enum ibv_qp_create_flags`.
    flags: u32,
    pd: *mut ibv_pd,
    context: *mut ibv_context,
    ports: Arc<RawPorts>,
    spec: Arc<RawSpec>,
    caps: RawPacketCaps,
    queue: (u16, u16),
    /// The port whose rules it has, or shares in.
    on: Option<u8>,
}

// SAFETY: none of its objects belongs to a thread.
unsafe impl Send for RawQueue {}

impl RawQueue {
    /// Prepares to receive as the spec says. Where it is one of several queues it has a work queue of that many
    /// receives, and its queue pair none.
    ///
    /// # Errors
    /// The device does not do what the spec wants, or has no work queues.
    ///
    /// # Safety
    /// Domain and completion queue are of the context; all outlive it.
    pub(in crate::provider::verbs) unsafe fn create(
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        cq: *mut ibv_cq,
        ports: &Arc<RawPorts>,
        (spec, caps): (&Arc<RawSpec>, RawPacketCaps),
        queue: (u16, u16),
        (depth, sges): (u32, u32),
    ) -> Result<Self, RawError> {
        spec.check(&caps, queue.1)?;
        range("queue of the port", queue.0.into(), 0, u64::from(queue.1).saturating_sub(1))?;
        let wq = if queue.1 > 1 {
            let wish = WorkQueueSpec { depth, sges, receive: spec.receive };
            // SAFETY: the caller's promise.
            Some(unsafe { WorkQueue::create(context, pd, cq, wish, &caps)? })
        } else {
            None
        };
        let flags = if wq.is_some() { 0 } else { spec.receive.qp_flags()? };
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

    /// Adds to what the queue pair is created with: what it does to the frames that it receives and sends.
    pub(in crate::provider::verbs) fn prepare(&self, attr: &mut ibv_qp_init_attr_ex) {
        if self.flags != 0 {
            attr.comp_mask |= IBV_QP_INIT_ATTR_CREATE_FLAGS;
            attr.create_flags |= self.flags;
        }
        if self.spec.tso_header != 0 {
            attr.comp_mask |= IBV_QP_INIT_ATTR_MAX_TSO_HEADER;
            attr.max_tso_header = self.spec.tso_header;
        }
    }

    /// What its sends may ask of the device.
    pub(in crate::provider::verbs) fn offload(&self) -> Offload {
        Offload {
            checksum: self.caps.ip_checksum,
            run_flags: if self.spec.checksum { SendFlags::IP_CSUM } else { SendFlags::empty() },
            tso_header: self.spec.tso_header,
            tso_payload: self.caps.max_tso,
        }
    }

    /// Where receives are posted, if not to the queue pair.
    pub(in crate::provider::verbs) fn work_queue(&self) -> Option<&WorkQueue> {
        self.wq.as_ref()
    }

    /// Follows its queue pair into a state: receives may be posted from INIT on, frames come from RTR on, and what is
    /// posted is flushed in ERR and forgotten in RESET. Sends keep to their rate from RTS on.
    ///
    /// # Errors
    /// A rule or a rate cannot be, or as the verbs. Nothing is received then.
    ///
    /// # Safety
    /// The queue pair is that which it was made for, and on this port.
    pub(in crate::provider::verbs) unsafe fn follow(
        &mut self,
        qp: NonNull<ibv_qp>,
        port: u8,
        state: QpState,
    ) -> Result<(), RawError> {
        match state {
            QpState::Reset | QpState::Err => {
                // A queue pair keeps its own rules: in these states nothing comes by them.
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
            // SAFETY: the caller's promise.
            QpState::Rtr => unsafe { self.receive(qp, port) },
            QpState::Rts => match &self.spec.rate {
                // SAFETY: the caller's promise.
                Some(rate) => unsafe { rate.set(qp.as_ptr(), &self.caps) },
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// # Safety
    /// As [`RawQueue::follow`].
    unsafe fn receive(&mut self, qp: NonNull<ibv_qp>, port: u8) -> Result<(), RawError> {
        if self.on == Some(port) {
            return Ok(());
        }
        if let Some(wq) = &self.wq {
            let member = Member { wq: wq.as_ptr(), pd: self.pd };
            self.ports.join(self.context, port, self.queue, member, &self.spec, &self.caps)?;
        } else {
            self.flows.clear();
            let rules = self.spec.rules.iter().map(|rule| FlowRule { port, ..rule.clone() });
            // SAFETY: the caller's promise: the queue pair outlives this.
            self.flows = rules.map(|rule| unsafe { Flow::create(qp, &rule) }).collect::<Result<_, _>>()?;
        }
        self.on = Some(port);
        Ok(())
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

impl RawError {
    /// The same for those who know verbs alone. What is more to say of it is logged.
    pub(in crate::provider::verbs) fn into_verb_error(self, device: &str) -> VerbError {
        let error = match &self {
            Self::Verb(error) => return *error,
            Self::Flow(crate::provider::verbs::FlowError::Refused { error, .. }) => *error,
            Self::Flow(_) => VerbError::new("ibv_create_flow", libc::EINVAL),
            Self::Lacks { .. } => VerbError::new("ibv_create_qp", libc::EOPNOTSUPP),
            Self::Range { .. } => VerbError::new("ibv_create_qp", libc::EINVAL),
        };
        tracing::error!(device, "raw packets: {self}");
        error
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use ibverbs_sys::{ibv_qp_init_attr, ibv_qp_type};

    use super::*;
    use crate::provider::verbs::fake::{Call, Fake};
    use crate::provider::verbs::ffi;
    use crate::provider::verbs::raw::RssCaps;

    const CAPS: RawPacketCaps = RawPacketCaps {
        flow_rules: true,
        ip_checksum: false,
        vlan_strip: true,
        scatter_fcs: true,
        delay_drop: false,
        max_tso: 0,
        pacing: None,
        rss: Some(RssCaps { max_tables: 8, max_table_size: 8, max_work_queues: 8, fields: 0xff }),
    };

    /// A queue pair with its way to receive. They end in this order.
    struct Both {
        raw: Option<RawQueue>,
        qp: NonNull<ibv_qp>,
        cq: NonNull<ibv_cq>,
    }

    impl Both {
        fn create(fake: &Fake, ports: &Arc<RawPorts>, spec: RawSpec, queue: (u16, u16)) -> Result<Self, RawError> {
            let (context, pd) = (fake.context(), fake.pd().as_ptr());
            // SAFETY: the objects are of one device, and end before it.
            unsafe {
                let cq = ffi::ibv_create_cq(fake.context(), 8, ptr::null_mut(), ptr::null_mut(), 0).unwrap();
                let raw = RawQueue::create(context, pd, cq.as_ptr(), ports, (&Arc::new(spec), CAPS), queue, (16, 1));
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

        fn follow(&mut self, state: QpState) -> Result<(), RawError> {
            // SAFETY: it is the queue pair's own.
            unsafe { self.raw.as_mut().unwrap().follow(self.qp, 1, state) }
        }
    }

    impl Drop for Both {
        fn drop(&mut self) {
            self.raw = None;
            // SAFETY: the objects are alive, and used no more.
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
    fn a_queue_alone_has_its_own_rules_from_rtr_on() {
        let fake = Fake::new(|_| {});
        let ports = Arc::new(RawPorts::default());
        let receive = RawReceive { vlan_strip: true, scatter_fcs: true, ..RawReceive::default() };
        let spec = RawSpec { receive, ..RawSpec::default() };
        let mut both = Both::create(&fake, &ports, spec, (0, 1)).unwrap();
        let mut attr = ibv_qp_init_attr_ex::default();
        both.raw.as_ref().unwrap().prepare(&mut attr);
        assert_eq!((attr.comp_mask, attr.create_flags), (IBV_QP_INIT_ATTR_CREATE_FLAGS, 1 << 8 | 1 << 9));
        both.follow(QpState::Init).unwrap();
        assert_eq!(flows(&fake.calls()), 0);
        for state in [QpState::Rtr, QpState::Rts, QpState::Err, QpState::Reset, QpState::Init, QpState::Rtr] {
            both.follow(state).unwrap();
        }
        assert_eq!(flows(&fake.calls()), 1, "they stay with the queue pair");
        drop(both);
        assert_eq!(fake.calls()[..2], [Call::DestroyFlow(1), Call::DestroyQp(1)]);
        assert_eq!(fake.live(), 0);
    }

    #[test]
    fn frames_come_when_the_last_queue_is_there_and_stop_when_the_first_goes() {
        let fake = Fake::new(|_| {});
        let ports = Arc::new(RawPorts::default());
        let mut queues: Vec<Both> =
            (0..3).map(|at| Both::create(&fake, &ports, RawSpec::default(), (at, 3)).unwrap()).collect();
        for both in &mut queues {
            assert_eq!(flows(&fake.calls()), 0);
            both.follow(QpState::Init).unwrap();
            both.follow(QpState::Rtr).unwrap();
        }
        let calls = fake.calls();
        assert_eq!(flows(&calls), 7);
        let filled = vec![1, 2, 3, 1, 2, 3, 1, 2];
        assert!(calls.contains(&Call::CreateTable { log_size: 3, wqs: filled, comp_mask: 0 }), "{calls:?}");
        queues[1].follow(QpState::Err).unwrap();
        let calls = fake.calls();
        assert!(matches!(calls[0], Call::DestroyFlow(_)), "{calls:?}");
        let err = Call::ModifyWq { wq: 2, mask: 1, state: 2, current: 0, flags: 0, flags_mask: 0 };
        assert_eq!(calls.last(), Some(&err), "the rules go before the queue");
        for state in [QpState::Reset, QpState::Init, QpState::Rtr] {
            queues[1].follow(state).unwrap();
        }
        assert_eq!(flows(&fake.calls()), 7, "all are there again");
        drop(queues);
        let calls = fake.calls();
        let at = |wanted: fn(&Call) -> bool| calls.iter().position(wanted).unwrap();
        assert!(at(|call| matches!(call, Call::DestroyTable(_))) < at(|call| matches!(call, Call::DestroyWq(_))));
        assert_eq!(fake.live(), 0);
        assert!(ports.lock().is_empty());
    }

    #[test]
    fn a_place_is_taken_once_and_a_failure_leaves_it_free() {
        let fake = Fake::new(|_| {});
        let ports = Arc::new(RawPorts::default());
        let mut first = Both::create(&fake, &ports, RawSpec::default(), (0, 2)).unwrap();
        let mut same = Both::create(&fake, &ports, RawSpec::default(), (0, 2)).unwrap();
        let mut other = Both::create(&fake, &ports, RawSpec::default(), (1, 3)).unwrap();
        let mut second = Both::create(&fake, &ports, RawSpec::default(), (1, 2)).unwrap();
        assert!(Both::create(&fake, &ports, RawSpec::default(), (2, 2)).is_err());
        first.follow(QpState::Rtr).unwrap();
        let taken = same.follow(QpState::Rtr).unwrap_err();
        assert_eq!(taken, RawError::Verb(VerbError::new("ibv_create_rwq_ind_table", libc::EEXIST)));
        assert!(other.follow(QpState::Rtr).unwrap_err().to_string().contains("queues of the port: 3 asked for"));
        fake.refuse("ibv_create_flow", libc::EPERM);
        let error = second.follow(QpState::Rtr).unwrap_err();
        assert!(error.to_string().contains("CAP_NET_RAW"), "{error}");
        assert_eq!(error.into_verb_error("fake"), VerbError::new("ibv_create_flow", libc::EPERM));
        fake.refuse("ibv_create_flow", 0);
        second.follow(QpState::Rtr).unwrap();
        drop((same, other));
        assert!(ports.lock()[&1].spread.is_some(), "who never joined takes nothing away");
        drop((first, second));
        assert_eq!(fake.live(), 0);
    }

    #[test]
    fn what_the_spec_wants_is_refused_before_a_queue_is_made() {
        let fake = Fake::new(|_| {});
        let ports = Arc::new(RawPorts::default());
        let receive = RawReceive { delay_drop: true, ..RawReceive::default() };
        let spec = RawSpec { receive, ..RawSpec::default() };
        for queue in [(0, 1), (0, 2)] {
            let error = Both::create(&fake, &ports, spec.clone(), queue).err().unwrap();
            assert!(error.to_string().contains("delay drop"), "{error}");
            assert_eq!(error.into_verb_error("fake"), VerbError::new("ibv_create_qp", libc::EOPNOTSUPP));
        }
        assert_eq!(fake.live(), 0);
    }
}
