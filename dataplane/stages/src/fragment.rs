//! `fragment`: fragments IPv4 datagrams that exceed the MTU of their egress port.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::forwarding::ForwardingReader;
use crate::kernel;
use crate::parameter::Origin;
use dataplane_core::header::Header;
use dataplane_core::header::ipv4::{DONT_FRAGMENT, FRAGMENT_OFFSET, Ipv4, MORE_FRAGMENTS, write_checksum};
use dataplane_core::mem::{Batch, Edge, MetaFlags, Reason};
use dataplane_core::pipeline::{Contract, Ctx, Facts, Problem, Setup, Stage, StageInfo};

/// Splits IPv4 datagrams that are larger than the MTU of their egress port into fragments (RFC 791).
///
/// Packets up to the MTU go to the next stage unchanged. Larger IPv6 packets, and larger IPv4 datagrams with the "don't
/// fragment" flag, leave by the output `too_big`. Connect an `icmp_error` stage to this output to notify the sender.
///
/// A packet above the MTU may itself be a fragment of a datagram. If a part of such a packet would need a fragment
/// offset above the largest possible offset (65,528 bytes), the stage drops the packet as `bad_length`.
///
/// Each fragment takes its own buffer. A batch holds 256 packets, and one packet becomes up to `most` fragments.
/// Therefore, `runtime.burst` must be at most 256 divided by `most`.
///
/// ```toml
/// [runtime]
/// burst = 32
///
/// [[pipeline.stage]]
/// name  = "routes"
/// use   = "route"
/// table = [{ prefix = "0.0.0.0/0", port = "wan" }]
///
/// [[pipeline.stage]]
/// name    = "fit"
/// use     = "fragment"
/// most    = 8
/// source  = "config"
/// outputs = { too_big = "tell_too_big" }
/// next    = "out"
///
/// [[pipeline.stage]]
/// name      = "tell_too_big"
/// use       = "icmp_error"
/// kind      = "too_big"
/// addresses = [{ port = "wan", address = "192.0.2.1" }]
/// outputs   = { reply = "out" }
///
/// [[pipeline.stage]]
/// name = "out"
/// use  = "tx"
/// ```
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fragment {
    /// Where the MTUs of the ports come from: `config` or `kernel`. Default: `config`.
    #[serde(default)]
    source: Origin,
    /// The maximum number of fragments of one packet: 2 to 16. A packet that needs more fragments is dropped as
    /// `too_many`. Default: 4.
    #[serde(default = "most")]
    #[schemars(range(min = 2, max = 16))]
    most: u8,
    #[serde(skip)]
    #[schemars(skip)]
    mtus: Vec<u32>,
    #[serde(skip)]
    #[schemars(skip)]
    reader: Option<ForwardingReader>,
}

fn most() -> u8 {
    4
}

const TOO_BIG: Edge = Edge::new(0);
const TOO_MANY: Reason = Reason::of_stage(0);
const NO_BUFFER: Reason = Reason::of_stage(1);

/// A datagram to fragment.
struct Datagram {
    /// The offset of the IPv4 header from the start of the packet, in bytes.
    start: usize,
    /// The offset of the payload from the start of the packet, in bytes.
    payload: usize,
    /// The offset of the end of the datagram from the start of the packet, in bytes.
    end: usize,
    /// The number of payload bytes in each fragment except the last. A multiple of 8.
    step: usize,
    /// The IPv4 header field with the flags and the fragment offset.
    field: u16,
}

/// The decision of the stage about a packet.
enum FragmentVerdict {
    Fits,
    TooBig,
    Cut(Datagram),
    Refused(Reason),
}

impl Stage for Fragment {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        // New fragments are appended to the batch. The loop visits only the packets that are in the batch now.
        for index in 0..batch.len() {
            match self.verdict(batch, index) {
                FragmentVerdict::Fits => {}
                FragmentVerdict::TooBig => steer(batch, index),
                FragmentVerdict::Refused(reason) => drop(batch, index, reason),
                FragmentVerdict::Cut(datagram) => cut(batch, index, &datagram),
            }
        }
    }

    fn tick(&mut self, _ctx: &Ctx) {
        if let Some(reader) = &self.reader {
            reader.mark_quiescent();
        }
    }

    fn prepare(&mut self, setup: &mut Setup<'_>) -> Result<(), Problem> {
        if !(2..=16).contains(&self.most) {
            return Err(Problem::at("most", format!("{} is out of range", self.most))
                .help("set `most` to a value from 2 to 16"));
        }
        self.mtus = setup.ports().iter().map(|port| u32::from(port.mtu)).collect();
        self.reader = (self.source == Origin::Kernel).then(|| kernel::tables(setup).register_reader());
        Ok(())
    }

    fn info() -> StageInfo {
        StageInfo::new()
            .stateless()
            .outputs(&[("too_big", "packets that exceed the MTU and must not be fragmented")])
            .reasons(&[
                ("too_many", "the packet needs more fragments than `most`"),
                ("no_buffer", "no buffer was free for a fragment"),
            ])
            .drops(&[Reason::NoPort, Reason::TooLong, Reason::BadLength])
    }

    fn contract(&self) -> Contract {
        Contract::new().needs(Facts::HEADERS | Facts::EGRESS).splits(usize::from(self.most).saturating_sub(1))
    }
}

impl Fragment {
    #[inline]
    fn verdict(&self, batch: &mut Batch, index: usize) -> FragmentVerdict {
        let Some(packet) = batch.get_mut(index) else { return FragmentVerdict::Fits };
        let meta = packet.meta();
        let mtu = match &self.reader {
            Some(reader) => reader.mtu(meta.egress),
            None => self.mtus.get(usize::from(meta.egress)).copied(),
        };
        let Some(mtu) = mtu else { return FragmentVerdict::Refused(Reason::NoPort) };
        let (start, end) = (usize::from(meta.l3), usize::from(meta.end));
        if end.saturating_sub(start) <= mtu as usize {
            return FragmentVerdict::Fits;
        }
        if meta.flags.contains(MetaFlags::IPV6) {
            return FragmentVerdict::TooBig;
        }
        let header = packet.data().get(start..end).filter(|_| meta.flags.contains(MetaFlags::IPV4));
        let Some(Ok(ip)) = header.map(Ipv4::view) else { return FragmentVerdict::Refused(Reason::TooLong) };
        let field = ip.fragment.get();
        if field & DONT_FRAGMENT != 0 {
            return FragmentVerdict::TooBig;
        }
        let payload = start + ip.header_len();
        let step = (mtu as usize).saturating_sub(ip.header_len()) & !7;
        if step == 0 {
            return FragmentVerdict::Refused(Reason::TooLong);
        }
        if (end - payload).div_ceil(step) > usize::from(self.most) {
            return FragmentVerdict::Refused(TOO_MANY);
        }
        let last = (end - payload - 1) / step * step;
        if usize::from(field & FRAGMENT_OFFSET) + last / 8 > usize::from(FRAGMENT_OFFSET) {
            // The packet is itself a fragment, and the offset of its last part does not fit in the header field. The
            // datagram is then longer than 65,535 bytes, the maximum length (RFC 791).
            return FragmentVerdict::Refused(Reason::BadLength);
        }
        FragmentVerdict::Cut(Datagram { start, payload, end, step, field })
    }
}

fn steer(batch: &mut Batch, index: usize) {
    if let Some(mut packet) = batch.get_mut(index) {
        packet.steer(TOO_BIG);
    }
}

fn drop(batch: &mut Batch, index: usize, reason: Reason) {
    if let Some(mut packet) = batch.get_mut(index) {
        packet.drop(reason);
    }
}

/// Creates the later fragments, then truncates the packet to the first fragment.
fn cut(batch: &mut Batch, index: usize, datagram: &Datagram) {
    let Datagram { start, payload, end, step, field } = *datagram;
    let made = batch.len();
    for from in (payload..end).step_by(step).skip(1) {
        let to = end.min(from + step);
        let Some(mut packet) = batch.split_from(index, [0..payload, from..to]) else {
            // A datagram with a missing fragment is useless, so all its fragments are dropped.
            for at in made..batch.len() {
                drop(batch, at, NO_BUFFER);
            }
            return drop(batch, index, NO_BUFFER);
        };
        let meta = packet.meta_mut();
        meta.flags -= MetaFlags::FIRST_FRAGMENT | MetaFlags::L4;
        meta.flags |= MetaFlags::FRAGMENT;
        (meta.l4, meta.end) = (0, (payload + to - from) as u16);
        // The last fragment keeps the "more fragments" flag of the packet, because the packet may itself be a fragment.
        let more = if to < end { MORE_FRAGMENTS } else { field & MORE_FRAGMENTS };
        let offset = (field & FRAGMENT_OFFSET) + ((from - payload) / 8) as u16;
        let datagram = packet.data_mut().get_mut(start..).unwrap_or_default();
        blank_options(datagram.get_mut(Ipv4::LEN..payload - start).unwrap_or_default());
        rewrite(datagram, payload - start + to - from, field & !(FRAGMENT_OFFSET | MORE_FRAGMENTS) | more | offset);
    }
    let Some(mut packet) = batch.get_mut(index) else { return };
    packet.truncate(payload + step);
    let meta = packet.meta_mut();
    if field & FRAGMENT_OFFSET == 0 {
        meta.flags |= MetaFlags::FIRST_FRAGMENT;
    }
    meta.flags |= MetaFlags::FRAGMENT;
    let datagram = packet.data_mut().get_mut(start..).unwrap_or_default();
    rewrite(datagram, payload - start + step, field | MORE_FRAGMENTS);
}

/// Sets length, flags and fragment offset of a datagram, and recomputes its checksum.
fn rewrite(datagram: &mut [u8], length: usize, field: u16) {
    if let Ok(ip) = Ipv4::view_mut(datagram) {
        ip.total_length.set(length as u16);
        ip.fragment.set(field);
    }
    // The header was parsed before, so `write_checksum` cannot fail.
    let _ = write_checksum(datagram);
}

/// Overwrites each option whose copied flag is clear with no-operation options. Only the first fragment keeps options
/// whose copied flag is clear (RFC 791, section 3.1).
fn blank_options(mut options: &mut [u8]) {
    const END: u8 = 0;
    const NOTHING: u8 = 1;
    const COPIED: u8 = 0x80;
    while let Some(&kind) = options.first() {
        let length = match kind {
            END => return,
            NOTHING => 1,
            // An option that exceeds the header is cut to the end of the header. An option without a valid length is
            // skipped byte by byte.
            _ => usize::from(options.get(1).copied().unwrap_or(1)).clamp(1, options.len()),
        };
        let (option, rest) = options.split_at_mut(length);
        if kind & COPIED == 0 {
            option.fill(NOTHING);
        }
        options = rest;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::parse::Parse;
    use dataplane_core::harness::{Fate, Harness, Outcome, frame, port};
    use dataplane_core::header::ipv4::checksum_ok;
    use dataplane_core::pipeline::PortInfo;
    use dataplane_testing::strategies;

    fn bench(mtu: u16, parameters: &str) -> Harness {
        let port = PortInfo { mtu, ..port("a") };
        struct Out;
        impl Stage for Out {
            fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
                batch.iter_mut().for_each(|mut packet| packet.meta_mut().egress = 0);
            }
        }
        let builder = Harness::builder().ports(&[port]).after(Parse::default()).after(Out);
        builder.build::<Fragment>(parameters).unwrap()
    }

    fn datagram(outcome: &Outcome) -> (usize, bool, Vec<u8>) {
        let l3 = usize::from(outcome.meta.l3);
        let bytes = &outcome.bytes[l3..];
        let ip = Ipv4::view(bytes).unwrap();
        assert!(checksum_ok(bytes));
        assert_eq!(usize::from(ip.total_length.get()), bytes.len());
        assert_eq!(usize::from(outcome.meta.end), outcome.bytes.len());
        let more = ip.fragment.get() & MORE_FRAGMENTS != 0;
        (ip.fragment_offset() as usize, more, bytes[ip.header_len()..].to_vec())
    }

    proptest! {
        #[test]
        fn fragments_together_equal_the_datagram(
            size in 0..4000usize, mtu in 68..1500u16, tags in 0..3u16, option_words in 0..10usize,
            offset in prop_oneof![0..100u16, 7600..8192u16], more in any::<bool>(),
        ) {
            let payload: Vec<u8> = (0..size).map(|at| (at * 7) as u8).collect();
            // Record route options (type 7). Later fragments do not copy these options.
            let options: Vec<u8> = (0..option_words * 4).map(|at| if at % 4 == 0 { 7 } else { 4 }).collect();
            let field = if more { MORE_FRAGMENTS | offset } else { offset };
            let sent = (0..tags).fold(frame(), |frame, tag| frame.vlan(tag + 1));
            let sent = sent.ipv4([198, 51, 100, 7].into(), [203, 0, 113, 9].into()).options(&options);
            let sent = sent.fragment(field).protocol(200).payload(&payload).build();
            let outcomes = bench(mtu, "most = 16").run(std::slice::from_ref(&sent));
            let (l3, header) = (usize::from(outcomes[0].meta.l3), 20 + options.len());
            let step = (usize::from(mtu) - header.min(usize::from(mtu))) & !7;
            if header + size <= usize::from(mtu) {
                prop_assert_eq!(outcomes.len(), 1);
                prop_assert_eq!(&outcomes[0].bytes, &sent);
                return Ok(());
            }
            let last_offset = usize::from(offset) + size.saturating_sub(1) / step.max(1) * step / 8;
            if step == 0 || size.div_ceil(step) > 16 || last_offset > 8191 {
                prop_assert!(matches!(outcomes[0].fate, Fate::Dropped(_)));
                prop_assert_eq!(outcomes.len(), 1);
                return Ok(());
            }
            let mut whole = Vec::new();
            for (place, outcome) in outcomes.iter().enumerate() {
                prop_assert_eq!(&outcome.fate, &Fate::Next);
                prop_assert!(outcome.bytes.len() - l3 <= usize::from(mtu));
                let (at, another, bytes) = datagram(outcome);
                prop_assert_eq!(at, usize::from(offset) * 8 + whole.len());
                prop_assert_eq!(another, more || place + 1 < outcomes.len());
                let copied = &outcome.bytes[l3 + 20..l3 + header];
                let blank = vec![1; options.len()];
                prop_assert_eq!(copied, if place == 0 { &options } else { &blank });
                whole.extend(bytes);
            }
            prop_assert_eq!(whole, payload);
        }

        #[test]
        fn no_frame_above_the_mtu_goes_to_the_next_stage(
            frames in prop::collection::vec(strategies::any_frame(), 1..20),
        ) {
            for outcome in bench(300, "").run(&frames) {
                let is_long = usize::from(outcome.meta.end) > usize::from(outcome.meta.l3) + 300;
                prop_assert!(outcome.fate != Fate::Next || !is_long);
            }
        }
    }

    #[test]
    fn unfragmentable_packets_go_to_output_too_big() {
        let v4 = frame().ipv4([198, 51, 100, 7].into(), [203, 0, 113, 9].into());
        let v6 = frame().ipv6("2001:db8::7".parse().unwrap(), "2001:db8::9".parse().unwrap());
        let too_big = Fate::Output("too_big".to_owned());
        for (sent, fate) in [
            (v4.fragment(DONT_FRAGMENT).udp(1, 2).payload(&[0; 1600]).build(), too_big.clone()),
            (v4.fragment(DONT_FRAGMENT).udp(1, 2).payload(&[0; 1400]).build(), Fate::Next),
            (v6.udp(1, 2).payload(&[0; 1600]).build(), too_big),
            (v6.udp(1, 2).payload(&[0; 1400]).build(), Fate::Next),
        ] {
            let outcome = bench(1500, "").run_one(&sent);
            assert_eq!((outcome.fate, outcome.bytes), (fate, sent));
        }
    }

    #[test]
    fn packet_that_needs_too_many_fragments_is_dropped() {
        let sent =
            frame().ipv4([198, 51, 100, 7].into(), [203, 0, 113, 9].into()).udp(1, 2).payload(&[0; 3000]).build();
        let fates = |most: &str| -> Vec<Fate> { bench(600, most).run(&[&sent]).into_iter().map(|o| o.fate).collect() };
        assert_eq!(fates("most = 5"), [Fate::Dropped("too_many".to_owned())]);
        assert_eq!(fates("most = 6").len(), 6);
        for most in [0, 1, 17] {
            let error = Harness::from_toml::<Fragment>(&format!("most = {most}")).err().unwrap();
            assert!(error.starts_with("most: "), "{error}");
        }
    }
}
