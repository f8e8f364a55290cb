//! An open device, as an implementation of the trait `Device`.
#![allow(unsafe_code)]

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ibverbs_sys::{ibv_context, ibv_gid_entry, ibv_values_ex};

use super::attr::{gid_of, lane_speed, lanes, mtu_bytes};
use super::capabilities::{self, ProbeResult};
use super::channel::VerbsChannel;
use super::context::Context;
use super::cq::{self, VerbsCq};
use super::domain::VerbsPd;
use super::event;
use super::ffi;
use super::flow::VerbsFlowCounters;
use super::quirk::Quirk;
use super::raw;
use super::raw_queue::RawSetup;
use super::rss;
use super::selftest::{self, SelfTest};
use dataplane_core::clock::{ClockSource, Timebase};
use dataplane_core::error::{Error, VerbError};
use dataplane_core::units::Ticks;
use dataplane_core::verbs::{
    AsyncEvent, Capabilities, Capability, CqApi, CqGranted, CqSpec, Device, FlowCounters, GidEntry, GidKind, LinkLayer,
    PortAttributes, PortState, RawDevice, RawPacketCaps, RawSpec,
};

/// An open libibverbs device. All clones share one device. The device is closed when its last object is dropped.
#[derive(Clone)]
pub struct VerbsDevice {
    context: Arc<Context>,
    probed: Arc<ProbeResult>,
    raw_setup: RawSetup,
    /// The result of the self-test, once the test has run.
    tested: Arc<OnceLock<SelfTest>>,
}

impl fmt::Debug for VerbsDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerbsDevice").field("name", &self.context.name).finish_non_exhaustive()
    }
}

impl VerbsDevice {
    /// Takes ownership of an open context and detects the capabilities of the device.
    ///
    /// # Errors
    /// The device does not report its attributes.
    ///
    /// # Safety
    /// The context must be open, and nothing else may close it.
    pub(super) unsafe fn new(raw: NonNull<ibv_context>, name: String) -> Result<Self, VerbError> {
        // SAFETY: the caller upholds the safety contract.
        Ok(Self::of(unsafe { Context::new(raw, name) }?))
    }

    /// Detects the capabilities of an open device.
    pub(super) fn of(context: Context) -> Self {
        let context = Arc::new(context);
        let unknown = Self { context, probed: Arc::default(), raw_setup: RawSetup::default(), tested: Arc::default() };
        let probed = Arc::new(capabilities::probe(&unknown, &unknown.context));
        Self { probed, ..unknown }
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn probed(&self) -> &ProbeResult {
        &self.probed
    }

    /// Returns the result of the self-test of batch polling. The first call runs the test.
    pub fn self_test(&self) -> &SelfTest {
        self.tested.get_or_init(|| selftest::run(&self.context))
    }

    /// Returns the best poll interface that works reliably. If a better interface is not reliable, also returns the
    /// reason.
    fn safe_api(&self) -> (CqApi, Option<String>) {
        let known = self.context.quirks.why(Quirk::BatchPoll);
        if let Some(why) = known
            && let Some(library) = self.context.library
        {
            return (CqApi::Classic, Some(format!("{why}; the installed version is {library}")));
        }
        match (self.self_test(), known) {
            (SelfTest::Passed, _) | (SelfTest::Unknown(_), None) => (CqApi::Extended, None),
            (SelfTest::Failed(how), _) => (CqApi::Classic, Some(format!("the self-test failed: {how}"))),
            // The version of the library is unknown here: with a known version, the function has already returned. A
            // known defect of the driver therefore counts as present.
            (SelfTest::Unknown(how), Some(why)) => {
                (CqApi::Classic, Some(format!("{why}; the self-test could not run: {how}")))
            }
        }
    }
}

#[allow(unsafe_code, reason = "the trait is unsafe to implement")]
// SAFETY: each call of `alloc_pd` allocates a new protection domain with `ibv_alloc_pd`. The only packet
// memory that the libraries of rxe and siw access in user space is the bytes of inline sends. The libraries pass each
// request to the kernel, which checks the keys.
unsafe impl Device for VerbsDevice {
    type Pd = VerbsPd;
    type Cq = VerbsCq;
    type Channel = VerbsChannel;

    fn name(&self) -> &str {
        &self.context.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.probed.capabilities
    }

    fn missing_reason(&self, capability: Capability) -> Option<&str> {
        let missing = self.probed.missing.iter().find(|missing| missing.capability == capability)?;
        Some(&missing.why)
    }

    fn checks_every_key(&self) -> bool {
        matches!(self.context.driver.as_str(), "rxe" | "siw")
    }

    fn port(&self, port: u8) -> Result<PortAttributes, VerbError> {
        /// `IBV_QPF_GRH_REQUIRED`.
        const GRH_REQUIRED: u8 = 1;
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
            grh_required: attr.flags & GRH_REQUIRED != 0,
            lanes: lanes(attr.active_width),
            lane_speed: lane_speed(&attr),
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
        Ok(of_port.map(gid_entry).filter(|entry| !entry.gid.is_zero()).collect())
    }

    fn gid(&self, port: u8, index: u32) -> Result<GidEntry, VerbError> {
        // SAFETY: the context is open.
        let entry = unsafe { ffi::ibv_query_gid_ex(self.context.raw(), port, index) }?;
        Ok(gid_entry(&entry))
    }

    fn pkey(&self, port: u8, index: u16) -> Result<u16, VerbError> {
        let mut pkey = 0;
        // SAFETY: the context is open, and `pkey` is writable.
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
        // SAFETY: the context is open, and the structure selects the requested value.
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
        VerbsPd::alloc_for_raw(&self.context, self.raw_setup.clone())
    }

    fn create_channel(&self) -> Result<VerbsChannel, VerbError> {
        VerbsChannel::create(&self.context)
    }

    fn create_cq(&self, spec: &CqSpec, channel: Option<&VerbsChannel>) -> Result<(VerbsCq, CqGranted), VerbError> {
        cq::create(&self.context, spec, None, channel, || self.safe_api())
    }

    fn create_cq_in(
        &self,
        domain: &VerbsPd,
        spec: &CqSpec,
        channel: Option<&VerbsChannel>,
    ) -> Result<(VerbsCq, CqGranted), VerbError> {
        cq::create(&self.context, spec, Some(domain), channel, || self.safe_api())
    }

    fn wait_async_event(&self, timeout: Duration) -> Option<AsyncEvent> {
        event::wait(&self.context, timeout)
    }
}

/// Converts an entry of a GID table.
fn gid_entry(entry: &ibv_gid_entry) -> GidEntry {
    GidEntry {
        index: entry.gid_index,
        gid: gid_of(entry.gid),
        kind: GidKind::from_raw(entry.gid_type),
        interface: entry.ndev_ifindex,
    }
}

impl RawDevice for VerbsDevice {
    fn raw_caps(&self) -> RawPacketCaps {
        raw::caps(&self.context)
    }

    fn check_raw(&self, spec: &RawSpec, queues: u16) -> Result<(), Error> {
        if let Some(why) = self.missing_reason(Capability::RawPacket) {
            let name = self.name();
            return Err(Error::Config(format!("{name}: the device creates no raw-packet queue pairs: {why}")));
        }
        let checked = rss::check(spec, &self.raw_caps(), queues);
        checked.map_err(|error| Error::Config(format!("{}: {error}", self.name())))
    }

    fn with_raw(self, spec: RawSpec) -> Self {
        Self { raw_setup: self.raw_setup.with_spec(spec), ..self }
    }

    fn create_flow_counters(&self) -> Result<Arc<dyn FlowCounters>, VerbError> {
        Ok(Arc::new(VerbsFlowCounters::create(&self.context)?))
    }
}
