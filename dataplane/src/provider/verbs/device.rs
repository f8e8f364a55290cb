//! An open device.
#![allow(unsafe_code)]

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ibverbs_sys::{ibv_context, ibv_gid_entry, ibv_values_ex};

use super::attr::{gid_of, mtu_bytes};
use super::capabilities::{self, About};
use super::channel::VerbsChannel;
use super::context::Context;
use super::cq::{self, VerbsCq};
use super::domain::VerbsPd;
use super::event;
use super::ffi;
use super::flow::FlowCounters;
use super::quirk::Quirk;
use super::raw::{RawPacketCaps, RawSpec};
use super::selftest::{self, SelfTest};
use crate::clock::{ClockSource, Timebase};
use crate::error::{Error, VerbError};
use crate::provider::{
    AsyncEvent, Capabilities, CqApi, CqGranted, CqSpec, Device, GidEntry, GidKind, LinkLayer, PortAttributes, PortState,
};
use crate::units::Ticks;

/// An open device of libibverbs. Clones are the same device; it is closed when the last of its objects is gone.
#[derive(Clone)]
pub struct VerbsDevice {
    context: Arc<Context>,
    about: Arc<About>,
    raw_spec: Arc<RawSpec>,
}

impl fmt::Debug for VerbsDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerbsDevice").field("name", &self.context.name).finish_non_exhaustive()
    }
}

impl VerbsDevice {
    /// Takes over an open context, and asks what the device can do.
    ///
    /// # Errors
    /// It does not say.
    ///
    /// # Safety
    /// The context is open, and nobody else closes it.
    pub(super) unsafe fn new(raw: NonNull<ibv_context>, name: String) -> Result<Self, VerbError> {
        // SAFETY: the caller's promise.
        let context = Arc::new(unsafe { Context::new(raw, name) }?);
        let unknown = Self { context, about: Arc::default(), raw_spec: Arc::default() };
        let about = Arc::new(capabilities::probe(&unknown));
        Ok(Self { about, ..unknown })
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn about(&self) -> &About {
        &self.about
    }

    /// Whether completions can be polled in batches: tried once, when it is first asked.
    pub fn self_test(&self) -> &SelfTest {
        self.context.tested.get_or_init(|| selftest::run(&self.context))
    }

    /// The best way of polling that can be relied on, and why it is no better one.
    fn safe_api(&self) -> (CqApi, Option<String>) {
        let known = self.context.quirks.why(Quirk::BatchPoll);
        if let Some(why) = known
            && let Some(library) = self.context.library
        {
            return (CqApi::Classic, Some(format!("{why}; this is {library}")));
        }
        match (self.self_test(), known) {
            (SelfTest::Passed, _) | (SelfTest::Unknown(_), None) => (CqApi::Extended, None),
            (SelfTest::Failed(how), _) => (CqApi::Classic, Some(format!("the self-test failed: {how}"))),
            // Of a library of unknown version, what is not known to be good is not used.
            (SelfTest::Unknown(how), Some(why)) => (CqApi::Classic, Some(format!("{why}; no self-test: {how}"))),
        }
    }
}

impl Device for VerbsDevice {
    type Pd = VerbsPd;
    type Cq = VerbsCq;
    type Channel = VerbsChannel;

    fn name(&self) -> &str {
        &self.context.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.about.capabilities
    }

    fn port(&self, port: u8) -> Result<PortAttributes, VerbError> {
        // SAFETY: the context is open.
        let attr = unsafe { ffi::ibv_query_port(self.context.raw(), port) }?;
        Ok(PortAttributes {
            state: PortState::from_raw(attr.state),
            link_layer: LinkLayer::from_raw(attr.link_layer.into()),
            max_mtu: mtu_bytes(attr.max_mtu).unwrap_or(0),
            active_mtu: mtu_bytes(attr.active_mtu).unwrap_or(0),
            max_message: attr.max_msg_sz,
            gids: u32::try_from(attr.gid_tbl_len).unwrap_or(0),
            pkeys: attr.pkey_tbl_len,
            lid: attr.lid,
            lmc: attr.lmc,
        })
    }

    fn gids(&self, port: u8) -> Result<Vec<GidEntry>, VerbError> {
        let asked = self.port(port)?;
        let ports = self.context.limits.attr.orig_attr.phys_port_cnt;
        let places = (1..=ports).try_fold(0, |sum, other| {
            let gids = if other == port { asked.gids } else { self.port(other)?.gids };
            Ok(sum + gids as usize)
        })?;
        let mut entries = vec![ibv_gid_entry::default(); places];
        // SAFETY: the context is open.
        let n = unsafe { ffi::ibv_query_gid_table(self.context.raw(), &mut entries) }?;
        let of_port = entries[..n].iter().filter(|entry| entry.port_num == u32::from(port));
        let entry = |entry: &ibv_gid_entry| GidEntry {
            index: entry.gid_index,
            gid: gid_of(entry.gid),
            kind: GidKind::from_raw(entry.gid_type),
            interface: entry.ndev_ifindex,
        };
        Ok(of_port.map(entry).filter(|entry| !entry.gid.is_zero()).collect())
    }

    fn pkey(&self, port: u8, index: u16) -> Result<u16, VerbError> {
        let mut pkey = 0;
        // SAFETY: the context is open; the number is there to be written.
        unsafe { ffi::ibv_query_pkey(self.context.raw(), port, index.into(), &mut pkey) }?;
        Ok(u16::from_be(pkey))
    }

    fn timebase(&self) -> Timebase {
        let attr = &self.context.limits.attr;
        Timebase::new(ClockSource::DeviceTicks, attr.hca_core_clock, attr.completion_timestamp_mask)
    }

    fn raw_clock(&self) -> Result<Ticks, VerbError> {
        /// `IBV_VALUES_MASK_RAW_CLOCK`.
        const RAW_CLOCK: u32 = 1;
        const VERB: &str = "ibv_query_rt_values_ex";
        if self.context.gone.load(Ordering::Relaxed) {
            return Err(VerbError::new(VERB, libc::EIO));
        }
        let mut values = ibv_values_ex { comp_mask: RAW_CLOCK, ..Default::default() };
        // SAFETY: the context is open; the structure says what is asked.
        unsafe { ffi::ibv_query_rt_values_ex(self.context.raw(), &mut values) }?;
        if values.comp_mask & RAW_CLOCK == 0 {
            return Err(VerbError::new(VERB, libc::EOPNOTSUPP));
        }
        let seconds = (values.raw_clock.tv_sec as u64).wrapping_mul(1_000_000_000);
        Ok(Ticks(
            seconds.wrapping_add(values.raw_clock.tv_nsec as u64) & self.context.limits.attr.completion_timestamp_mask,
        ))
    }

    fn alloc_pd(&self) -> Result<VerbsPd, VerbError> {
        VerbsPd::alloc_for_raw(&self.context, self.raw_spec.clone())
    }

    fn create_channel(&self) -> Result<VerbsChannel, VerbError> {
        VerbsChannel::create(&self.context)
    }

    fn create_cq(&self, spec: &CqSpec, channel: Option<&VerbsChannel>) -> Result<(VerbsCq, CqGranted), VerbError> {
        cq::create(&self.context, spec, channel, || self.safe_api())
    }

    fn wait_async_event(&self, patience: Duration) -> Option<AsyncEvent> {
        event::wait(&self.context, patience)
    }
}

impl VerbsDevice {
    /// What it can do for queue pairs of raw packets.
    pub fn raw_caps(&self) -> RawPacketCaps {
        self.context.raw_caps()
    }

    /// The same device for queue pairs of raw packets that do this: which frames they receive, how those are spread over
    /// the queues of a port, and what the device does to them. Without it they receive every frame as it is.
    #[must_use]
    pub fn with_raw(self, spec: RawSpec) -> Self {
        Self { raw_spec: Arc::new(spec), ..self }
    }

    /// Checks that it can do what [`VerbsDevice::with_raw`] asked of it, with so many queues to a port.
    ///
    /// # Errors
    /// The first thing that it cannot, with the remedy; or a rule that cannot be.
    pub fn check_raw(&self, queues: u16) -> Result<(), Error> {
        let can = self.raw_spec.check(&self.context.raw_caps(), queues);
        can.map_err(|why| Error::Config(format!("{}: {why}", self.name())))
    }

    /// Counters for flow rules.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: the device has none.
    pub fn create_flow_counters(&self) -> Result<FlowCounters, VerbError> {
        FlowCounters::create(&self.context)
    }
}
