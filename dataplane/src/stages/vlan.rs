//! `vlan`: puts tags on, takes them off, and changes them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::header::ethernet::Ethernet;
use crate::header::vlan::{self, VlanTag};
use crate::header::{Header, MacAddr, ether_type};
use crate::mem::{Batch, MetaFlags, Packet, Reason};
use crate::pipeline::{Ctx, Problem, Setup, Stage};

/// Puts on, takes off or translates the outer VLAN tag (IEEE 802.1Q, 802.1ad).
///
/// It can be put before `parse` or after it. Of tagged packets that were not to be changed, and of untagged ones,
/// nothing is changed: they go on unless `strict` says otherwise.
///
/// ```toml
/// [[pipeline.stage]]
/// name = "to_carrier"
/// use = "vlan"
/// op = "push"
/// id = 100
/// pcp = 3
/// tpid = 0x88a8
///
/// [[pipeline.stage]]
/// name = "from_customer"
/// use = "vlan"
/// op = "translate"
/// map = { 7 = 70, 8 = 80 }
/// strict = true
/// ```
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Vlan {
    /// What to do.
    pub op: Op,
    /// `push`: the VLAN identifier, 0 to 4094.
    #[serde(default)]
    pub id: Option<u16>,
    /// `push`: the priority, 0 to 7; 0 if not given.
    #[serde(default)]
    pub pcp: Option<u8>,
    /// `push`: the type of the tag: 0x8100 (802.1Q, if not given), 0x88a8 (802.1ad) or 0x9100.
    #[serde(default)]
    pub tpid: Option<u16>,
    /// `translate`: from old to new identifiers, 0 to 4094. Priorities are kept.
    #[serde(default)]
    pub map: Option<BTreeMap<String, u16>>,
    /// `pop` and `translate`: whether untagged packets, and with `translate` those of a VLAN that is not listed, are
    /// dropped as `vlan_mismatch`.
    #[serde(default)]
    pub strict: bool,
    /// New identifiers by old ones, each with [`LISTED`].
    #[serde(skip)]
    #[schemars(skip)]
    ids: Vec<u16>,
    /// The tag to put on, with its type.
    #[serde(skip)]
    #[schemars(skip)]
    tag: [u8; VlanTag::LEN],
}

/// What can be done with a VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// Put one on, outside those that are there.
    Push,
    /// Take the outer one off.
    Pop,
    /// Change the VLAN identifier of the outer one.
    Translate,
}

const LISTED: u16 = 0x8000;
/// Bytes of both addresses: where the type of a frame, or of its outer tag, begins.
const MACS: usize = 2 * size_of::<MacAddr>();

impl Stage for Vlan {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        for mut packet in batch.iter_mut() {
            let changed = match self.op {
                Op::Push => push(&mut packet, self.tag),
                Op::Pop => pop(&mut packet, self.strict),
                Op::Translate => translate(&mut packet, &self.ids, self.strict),
            };
            match changed {
                Ok(true) => note(&mut packet),
                Ok(false) => {}
                Err(reason) => packet.drop(reason),
            }
        }
    }

    fn prepare(&mut self, _setup: &mut Setup<'_>) -> Result<(), Problem> {
        let given = [
            ("id", self.id.is_some(), Op::Push),
            ("pcp", self.pcp.is_some(), Op::Push),
            ("tpid", self.tpid.is_some(), Op::Push),
            ("map", self.map.is_some(), Op::Translate),
        ];
        if let Some((key, ..)) = given.iter().find(|(_, given, op)| *given && *op != self.op) {
            let op = format!("{:?}", self.op).to_lowercase();
            return Err(Problem::at(*key, format!("means nothing to op = \"{op}\"")).help("leave it out"));
        }
        match self.op {
            Op::Push => self.prepare_push(),
            Op::Pop => Ok(()),
            Op::Translate => self.prepare_translate(),
        }
    }

    fn explain(&mut self, packet: &Packet<'_>) -> Option<String> {
        let id = outer(packet).ok().flatten().map(vlan::id);
        Some(match (self.op, id) {
            (Op::Push, _) => format!("puts on VLAN {}", self.id?),
            (_, None) => "no VLAN tag".to_owned(),
            (Op::Pop, Some(id)) => format!("takes off VLAN {id}"),
            (Op::Translate, Some(id)) => match self.ids.get(usize::from(id)).filter(|new| **new & LISTED != 0) {
                Some(new) => format!("VLAN {id} becomes {}", vlan::id(*new)),
                None => format!("VLAN {id} is not listed"),
            },
        })
    }
}

impl Vlan {
    fn prepare_push(&mut self) -> Result<(), Problem> {
        let Some(id) = self.id else {
            return Err(Problem::at("id", "`push` needs a VLAN identifier").help("add id = 1 to 4094"));
        };
        check_id(id, "id")?;
        let pcp = self.pcp.unwrap_or(0);
        if pcp > 7 {
            return Err(Problem::at("pcp", format!("{pcp} is no priority")).help("0 to 7"));
        }
        let tpid = self.tpid.unwrap_or(ether_type::VLAN);
        if !vlan::is_tag(tpid) {
            return Err(
                Problem::at("tpid", format!("{tpid:#06x} is no type of a tag")).help("0x8100, 0x88a8 or 0x9100")
            );
        }
        if self.strict {
            return Err(Problem::at("strict", "`push` takes every packet").help("leave it out"));
        }
        let ([a, b], [c, d]) = (tpid.to_be_bytes(), (u16::from(pcp) << 13 | id).to_be_bytes());
        self.tag = [a, b, c, d];
        Ok(())
    }

    fn prepare_translate(&mut self) -> Result<(), Problem> {
        let Some(map) = self.map.as_ref().filter(|map| !map.is_empty()) else {
            return Err(Problem::at("map", "`translate` needs VLANs").help("such as map = { 7 = 70 }"));
        };
        self.ids = vec![0; 1 << 12];
        for (from, to) in map {
            let key = format!("map.{from}");
            let not_a_number = || Problem::at(&key, format!("`{from}` is no VLAN identifier")).help("0 to 4094");
            let from = from.parse().map_err(|_| not_a_number())?;
            check_id(from, &key)?;
            check_id(*to, &key)?;
            self.ids[usize::from(from)] = to | LISTED;
        }
        Ok(())
    }
}

fn check_id(id: u16, key: &str) -> Result<(), Problem> {
    match id {
        0..=4094 => Ok(()),
        _ => Err(Problem::at(key, format!("{id} is no VLAN identifier")).help("0 to 4094")),
    }
}

/// The control information of the outer tag, if there is one.
#[inline]
fn outer(packet: &Packet<'_>) -> Result<Option<u16>, Reason> {
    let Some((ethernet, rest)) = packet.data().split_first_chunk::<{ Ethernet::LEN }>() else {
        return Err(Reason::Runt);
    };
    if !vlan::is_tag(u16::from_be_bytes([ethernet[MACS], ethernet[MACS + 1]])) {
        return Ok(None);
    }
    match rest.first_chunk::<{ VlanTag::LEN }>() {
        Some([a, b, ..]) => Ok(Some(u16::from_be_bytes([*a, *b]))),
        None => Err(Reason::Truncated),
    }
}

#[inline]
fn push(packet: &mut Packet<'_>, tag: [u8; VlanTag::LEN]) -> Result<bool, Reason> {
    if packet.len() < Ethernet::LEN {
        return Err(Reason::Runt);
    }
    packet.prepend(VlanTag::LEN).ok_or(Reason::NoHeadroom)?;
    if let Some(front) = packet.data_mut().first_chunk_mut::<{ MACS + VlanTag::LEN }>() {
        front.copy_within(VlanTag::LEN.., 0);
        front[MACS..].copy_from_slice(&tag);
    }
    Ok(true)
}

#[inline]
fn pop(packet: &mut Packet<'_>, strict: bool) -> Result<bool, Reason> {
    if outer(packet)?.is_none() {
        return if strict { Err(Reason::VlanMismatch) } else { Ok(false) };
    }
    if let Some(front) = packet.data_mut().first_chunk_mut::<{ MACS + VlanTag::LEN }>() {
        front.copy_within(..MACS, VlanTag::LEN);
    }
    Ok(packet.trim_front(VlanTag::LEN))
}

#[inline]
fn translate(packet: &mut Packet<'_>, ids: &[u16], strict: bool) -> Result<bool, Reason> {
    let tci = outer(packet)?;
    let new = tci.and_then(|tci| ids.get(usize::from(vlan::id(tci)))).filter(|new| **new & LISTED != 0);
    let (Some(tci), Some(new)) = (tci, new) else {
        return if strict { Err(Reason::VlanMismatch) } else { Ok(false) };
    };
    let tci = tci & 0xf000 | vlan::id(*new);
    if let Some(place) = packet.data_mut().get_mut(Ethernet::LEN..Ethernet::LEN + size_of::<u16>()) {
        place.copy_from_slice(&tci.to_be_bytes());
    }
    Ok(true)
}

/// Writes down which tags the packet has now. Where the layers are has moved with the packet's front, and what is
/// behind the tags is what it was.
#[inline]
fn note(packet: &mut Packet<'_>) {
    let word = |at: usize| {
        let bytes = packet.data().get(at..).and_then(|bytes| bytes.first_chunk());
        bytes.map_or(0, |bytes| u16::from_be_bytes(*bytes))
    };
    let tagged = vlan::is_tag(word(MACS));
    let twice = tagged && vlan::is_tag(word(MACS + VlanTag::LEN));
    let tci = if tagged { word(Ethernet::LEN) } else { 0 };
    let meta = packet.meta_mut();
    meta.vlan = tci;
    meta.flags.set(MetaFlags::VLAN, tagged);
    meta.flags.set(MetaFlags::QINQ, twice);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::stages::parse::Parse;
    use crate::testing::{Fate, Harness, Outcome, strategies};

    /// The same by the simplest means.
    fn model(op: Op, strict: bool, frame: &[u8]) -> Result<Vec<u8>, &'static str> {
        if frame.len() < 14 {
            return Err("runt");
        }
        let tagged = matches!(frame[12..14], [0x81, 0] | [0x88, 0xa8] | [0x91, 0]);
        if op == Op::Push {
            return Ok([&frame[..12], &[0x88, 0xa8, 0x60, 100], &frame[12..]].concat());
        }
        if tagged && frame.len() < 18 {
            return Err("truncated");
        }
        let id = tagged.then(|| u16::from_be_bytes([frame[14] & 15, frame[15]]));
        match (op, id) {
            (Op::Pop, Some(_)) => Ok([&frame[..12], &frame[16..]].concat()),
            // 4095 is reserved (IEEE 802.1Q), so it is not on the list.
            (Op::Translate, Some(id)) if id % 2 == 1 && id < 4095 => {
                let [a, b] = (id - 1).to_be_bytes();
                Ok([&frame[..14], &[frame[14] & 0xf0 | a, b], &frame[16..]].concat())
            }
            _ if strict => Err("vlan_mismatch"),
            _ => Ok(frame.to_vec()),
        }
    }

    /// With `translate`, odd identifiers become the even ones below.
    fn parameters(op: Op, strict: bool) -> String {
        match op {
            Op::Push => "op = 'push'\nid = 100\npcp = 3\ntpid = 0x88a8".to_owned(),
            Op::Pop => format!("op = 'pop'\nstrict = {strict}"),
            Op::Translate => {
                let map: Vec<String> = (1..4094).step_by(2).map(|id| format!("{id} = {}", id - 1)).collect();
                format!("op = 'translate'\nstrict = {strict}\nmap = {{ {} }}", map.join(", "))
            }
        }
    }

    fn compare(outcome: &Outcome, expected: Result<Vec<u8>, &'static str>) -> Result<(), TestCaseError> {
        match expected {
            Ok(bytes) => prop_assert_eq!((&outcome.fate, &outcome.bytes), (&Fate::Next, &bytes)),
            Err(reason) => prop_assert_eq!(&outcome.fate, &Fate::Dropped(reason.to_owned())),
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn tags_change_as_in_the_model(
            op in prop::sample::select(vec![Op::Push, Op::Pop, Op::Translate]),
            strict in any::<bool>(),
            frames in prop::collection::vec(strategies::any_frame(), 1..20),
        ) {
            // Without `parse` before.
            let mut harness = Harness::from_toml::<Vlan>(&parameters(op, strict)).unwrap();
            for (outcome, frame) in harness.run(&frames).iter().zip(&frames) {
                compare(outcome, model(op, strict, frame))?;
            }
        }

        #[test]
        fn what_is_known_of_the_packet_stays_true(
            op in prop::sample::select(vec![Op::Push, Op::Pop, Op::Translate]),
            frames in prop::collection::vec(strategies::valid_frame(), 1..20),
        ) {
            let mut harness =
                Harness::builder().after(Parse::default()).build::<Vlan>(&parameters(op, false)).unwrap();
            let mut parse = Harness::from_toml::<Parse>("").unwrap();
            for outcome in harness.run(&frames) {
                let again = parse.run_one(&outcome.bytes);
                // Three tags are more than `parse` follows.
                if again.fate != Fate::Dropped("too_many_headers".to_owned()) {
                    prop_assert_eq!(format!("{:?}", outcome.meta), format!("{:?}", again.meta));
                }
            }
        }
    }

    #[test]
    fn parameters_that_do_not_fit_are_named() {
        for (parameters, message) in [
            ("op = 'push'", "id: `push` needs a VLAN identifier (add id = 1 to 4094)"),
            ("op = 'push'\nid = 4095", "id: 4095 is no VLAN identifier (0 to 4094)"),
            ("op = 'push'\nid = 1\npcp = 8", "pcp: 8 is no priority (0 to 7)"),
            ("op = 'push'\nid = 1\ntpid = 0x0800", "tpid: 0x0800 is no type of a tag (0x8100, 0x88a8 or 0x9100)"),
            ("op = 'push'\nid = 1\nstrict = true", "strict: `push` takes every packet (leave it out)"),
            ("op = 'pop'\nid = 1", "id: means nothing to op = \"pop\" (leave it out)"),
            ("op = 'translate'", "map: `translate` needs VLANs (such as map = { 7 = 70 })"),
            ("op = 'translate'\nmap = { x = 1 }", "map.x: `x` is no VLAN identifier (0 to 4094)"),
            ("op = 'translate'\nmap = { 1 = 5000 }", "map.1: 5000 is no VLAN identifier (0 to 4094)"),
        ] {
            assert_eq!(Harness::from_toml::<Vlan>(parameters).err().unwrap(), message);
        }
    }

    #[test]
    fn there_may_be_no_room_for_a_tag() {
        struct Fill;
        impl Stage for Fill {
            fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
                for mut packet in batch.iter_mut() {
                    let headroom = packet.headroom();
                    packet.prepend(headroom - 3).expect("it is less than there is").fill(0);
                }
            }
        }
        let mut harness = Harness::builder().after(Fill).build::<Vlan>("op = 'push'\nid = 1").unwrap();
        assert_eq!(harness.run_one(&[0; 60]).fate, Fate::Dropped("no_headroom".to_owned()));
    }
}
