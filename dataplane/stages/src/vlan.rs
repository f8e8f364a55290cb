//! `vlan`: pushes, pops and translates VLAN tags.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use dataplane_core::header::ethernet::Ethernet;
use dataplane_core::header::vlan::{self, VlanTag};
use dataplane_core::header::{Header, MacAddr, ether_type};
use dataplane_core::mem::{Batch, MetaFlags, Packet, Reason, RecvFields, RecvFlags};
use dataplane_core::pipeline::{Contract, Ctx, Problem, Setup, Stage, StageInfo};

/// Pushes, pops, translates or restores the outer VLAN tag (IEEE 802.1Q, 802.1ad).
///
/// The stage works before and after `parse`. If the operation `op` does not apply to a packet, the packet goes to the
/// next stage unchanged. With `strict = true`, the operations `pop` and `translate` drop these packets instead.
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
///
/// [[pipeline.stage]]
/// name = "as_received"
/// use = "vlan"
/// op = "restore"
/// ```
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Vlan {
    /// The operation: `push`, `pop`, `translate` or `restore`. `restore` pushes the tag that the device of the ingress
    /// port removed (`offload = ["vlan_strip"]`). The pushed tag has the type 0x8100. A tag with id 0 and priority 0 is
    /// not restored, because the device reports this tag like the absence of a tag. `restore` pushes no tag onto
    /// copies of a packet. If a packet passes several `restore` stages, each of these stages pushes the tag. No
    /// default.
    pub op: Op,
    /// The VLAN id of the pushed tag: 0 to 4094. Required with `push`, not allowed otherwise.
    #[serde(default)]
    #[schemars(range(min = 0, max = 4094))]
    pub id: Option<u16>,
    /// The priority of the pushed tag: 0 to 7. Only with `push`. Default: 0.
    #[serde(default)]
    #[schemars(range(min = 0, max = 7))]
    pub pcp: Option<u8>,
    /// The type (TPID) of the pushed tag: 0x8100 (802.1Q), 0x88a8 (802.1ad) or 0x9100. Only with `push`. Default:
    /// 0x8100.
    #[serde(default)]
    pub tpid: Option<u16>,
    /// The new VLAN id for each old VLAN id. Ids are from 0 to 4094. Priorities stay unchanged. Required with
    /// `translate`, not allowed otherwise.
    #[serde(default)]
    pub map: Option<BTreeMap<String, u16>>,
    /// Whether the stage drops packets to which the operation does not apply, with the reason `vlan_mismatch`. `pop`
    /// and `translate` do not apply to untagged packets. `translate` does not apply to packets of VLANs that are not in
    /// `map`. Only with `pop` and `translate`. Default: `false`.
    #[serde(default)]
    pub strict: bool,
    /// The new VLAN ids, indexed by old id. Entries of ids in `map` have [`LISTED`] set, and all other entries are 0.
    #[serde(skip)]
    #[schemars(skip)]
    ids: Vec<u16>,
    /// The tag to push, with its type.
    #[serde(skip)]
    #[schemars(skip)]
    tag: [u8; VlanTag::LEN],
}

/// An operation on the outer VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// Push a tag outside the existing tags.
    Push,
    /// Pop the outer tag.
    Pop,
    /// Change the VLAN id of the outer tag.
    Translate,
    /// Push the tag that the device removed.
    Restore,
}

/// The bit that marks a VLAN id in `ids` as an id that `map` contains.
const LISTED: u16 = 0x8000;
/// The length of both MAC addresses, which is the offset of the EtherType or of the outer tag.
const MACS: usize = 2 * size_of::<MacAddr>();

impl Stage for Vlan {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        for mut packet in batch.iter_mut() {
            let changed = match self.op {
                Op::Push => push(&mut packet, self.tag),
                Op::Pop => pop(&mut packet, self.strict),
                Op::Translate => translate(&mut packet, &self.ids, self.strict),
                Op::Restore => restore(&mut packet),
            };
            match changed {
                Ok(true) => update_meta(&mut packet),
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
            return Err(Problem::at(*key, format!("has no effect with op = \"{op}\"")).help(format!("remove `{key}`")));
        }
        match self.op {
            Op::Push => self.prepare_push(),
            Op::Pop => Ok(()),
            Op::Translate => self.prepare_translate(),
            Op::Restore if self.strict => {
                Err(Problem::at("strict", "has no effect with op = \"restore\"").help("remove `strict`"))
            }
            Op::Restore => Ok(()),
        }
    }

    fn info() -> StageInfo {
        let drops = &[Reason::Runt, Reason::Truncated, Reason::NoHeadroom, Reason::VlanMismatch];
        StageInfo::new().stateless().drops(drops)
    }

    fn contract(&self) -> Contract {
        let receives = if self.op == Op::Restore { RecvFields::VLAN } else { RecvFields::empty() };
        Contract::new().receives(receives)
    }

    fn explain(&mut self, packet: &Packet<'_>) -> Option<String> {
        let id = outer(packet).ok().flatten().map(vlan::id);
        Some(match (self.op, id) {
            (Op::Restore, _) => match packet.recv_info() {
                info if info.flags.contains(RecvFlags::VLAN_STRIPPED) => format!("pushes VLAN {}", vlan::id(info.vlan)),
                _ => "the device removed no VLAN tag".to_owned(),
            },
            (Op::Push, _) => format!("pushes VLAN {}", self.id?),
            (_, None) => "no VLAN tag".to_owned(),
            (Op::Pop, Some(id)) => format!("pops VLAN {id}"),
            (Op::Translate, Some(id)) => match self.ids.get(usize::from(id)).filter(|new| **new & LISTED != 0) {
                Some(new) => format!("translates VLAN {id} to {}", vlan::id(*new)),
                None => format!("VLAN {id} is not in `map`"),
            },
        })
    }
}

impl Vlan {
    fn prepare_push(&mut self) -> Result<(), Problem> {
        let Some(id) = self.id else {
            return Err(Problem::at("id", "`push` needs a VLAN id").help("set `id` to a number from 0 to 4094"));
        };
        check_id(id, "id")?;
        let pcp = self.pcp.unwrap_or(0);
        if pcp > 7 {
            return Err(
                Problem::at("pcp", format!("{pcp} is not a priority")).help("set `pcp` to a number from 0 to 7")
            );
        }
        let tpid = self.tpid.unwrap_or(ether_type::VLAN);
        if !vlan::is_tag(tpid) {
            return Err(Problem::at("tpid", format!("{tpid:#06x} is not a tag type"))
                .help("set `tpid` to 0x8100, 0x88a8 or 0x9100"));
        }
        if self.strict {
            return Err(Problem::at("strict", "`push` applies to every packet").help("remove `strict`"));
        }
        let ([a, b], [c, d]) = (tpid.to_be_bytes(), (u16::from(pcp) << 13 | id).to_be_bytes());
        self.tag = [a, b, c, d];
        Ok(())
    }

    fn prepare_translate(&mut self) -> Result<(), Problem> {
        let Some(map) = self.map.as_ref().filter(|map| !map.is_empty()) else {
            return Err(Problem::at("map", "`translate` needs VLAN ids").help("add map = { 7 = 70 }, for example"));
        };
        self.ids = vec![0; 1 << 12];
        for (from, to) in map {
            let key = format!("map.{from}");
            let not_a_number =
                || Problem::at(&key, format!("`{from}` is not a VLAN id")).help("set a VLAN id from 0 to 4094");
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
        _ => Err(Problem::at(key, format!("{id} is not a VLAN id")).help("set a VLAN id from 0 to 4094")),
    }
}

/// Returns the tag control information of the outer tag, or `None` if the packet is untagged.
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

/// Pushes the tag that the device removed, if there is one.
fn restore(packet: &mut Packet<'_>) -> Result<bool, Reason> {
    let info = packet.recv_info();
    if !info.flags.contains(RecvFlags::VLAN_STRIPPED) {
        return Ok(false);
    }
    let ([a, b], [c, d]) = (ether_type::VLAN.to_be_bytes(), info.vlan.to_be_bytes());
    push(packet, [a, b, c, d])
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

/// Updates the VLAN metadata of a packet after a change. The layer offsets were already adjusted when the start of the
/// packet moved. The layers after the tags did not change.
#[inline]
fn update_meta(packet: &mut Packet<'_>) {
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
    use crate::parse::Parse;
    use dataplane_core::harness::{Fate, Harness, Outcome};
    use dataplane_testing::strategies;

    /// Processes a frame with a simple model of the stage.
    fn model(op: Op, strict: bool, frame: &[u8]) -> Result<Vec<u8>, &'static str> {
        if op == Op::Restore {
            // The harness has no device that removes tags.
            return Ok(frame.to_vec());
        }
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
            // VLAN id 4095 is reserved (IEEE 802.1Q), so it is not in `map`.
            (Op::Translate, Some(id)) if id % 2 == 1 && id < 4095 => {
                let [a, b] = (id - 1).to_be_bytes();
                Ok([&frame[..14], &[frame[14] & 0xf0 | a, b], &frame[16..]].concat())
            }
            _ if strict => Err("vlan_mismatch"),
            _ => Ok(frame.to_vec()),
        }
    }

    /// Returns the parameters of an operation. `translate` maps each odd id to the even id below.
    fn parameters(op: Op, strict: bool) -> String {
        match op {
            Op::Push => "op = 'push'\nid = 100\npcp = 3\ntpid = 0x88a8".to_owned(),
            Op::Pop => format!("op = 'pop'\nstrict = {strict}"),
            Op::Restore => "op = 'restore'".to_owned(),
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
        fn tags_match_the_model(
            op in prop::sample::select(vec![Op::Push, Op::Pop, Op::Translate, Op::Restore]),
            strict in any::<bool>(),
            frames in prop::collection::vec(strategies::any_frame(), 1..20),
        ) {
            // The harness has no `parse` stage before the `vlan` stage.
            let mut harness = Harness::from_toml::<Vlan>(&parameters(op, strict)).unwrap();
            for (outcome, frame) in harness.run(&frames).iter().zip(&frames) {
                compare(outcome, model(op, strict, frame))?;
            }
        }

        #[test]
        fn packet_metadata_stays_correct(
            op in prop::sample::select(vec![Op::Push, Op::Pop, Op::Translate, Op::Restore]),
            frames in prop::collection::vec(strategies::valid_frame(), 1..20),
        ) {
            let mut harness =
                Harness::builder().after(Parse::default()).build::<Vlan>(&parameters(op, false)).unwrap();
            let mut parse = Harness::from_toml::<Parse>("").unwrap();
            for outcome in harness.run(&frames) {
                let again = parse.run_one(&outcome.bytes);
                // `parse` follows at most two tags.
                if again.fate != Fate::Dropped("too_many_headers".to_owned()) {
                    prop_assert_eq!(format!("{:?}", outcome.meta), format!("{:?}", again.meta));
                }
            }
        }
    }

    #[test]
    fn invalid_parameters_are_refused_with_their_key() {
        for (parameters, message) in [
            ("op = 'push'", "id: `push` needs a VLAN id; help: set `id` to a number from 0 to 4094"),
            ("op = 'push'\nid = 4095", "id: 4095 is not a VLAN id; help: set a VLAN id from 0 to 4094"),
            ("op = 'push'\nid = 1\npcp = 8", "pcp: 8 is not a priority; help: set `pcp` to a number from 0 to 7"),
            (
                "op = 'push'\nid = 1\ntpid = 0x0800",
                "tpid: 0x0800 is not a tag type; help: set `tpid` to 0x8100, 0x88a8 or 0x9100",
            ),
            ("op = 'push'\nid = 1\nstrict = true", "strict: `push` applies to every packet; help: remove `strict`"),
            ("op = 'pop'\nid = 1", "id: has no effect with op = \"pop\"; help: remove `id`"),
            ("op = 'translate'", "map: `translate` needs VLAN ids; help: add map = { 7 = 70 }, for example"),
            ("op = 'translate'\nmap = { x = 1 }", "map.x: `x` is not a VLAN id; help: set a VLAN id from 0 to 4094"),
            (
                "op = 'translate'\nmap = { 1 = 5000 }",
                "map.1: 5000 is not a VLAN id; help: set a VLAN id from 0 to 4094",
            ),
        ] {
            assert_eq!(Harness::from_toml::<Vlan>(parameters).err().unwrap(), message);
        }
    }

    #[test]
    fn push_without_headroom_is_dropped() {
        struct Fill;
        impl Stage for Fill {
            fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
                for mut packet in batch.iter_mut() {
                    let headroom = packet.headroom();
                    packet.prepend(headroom - 3).expect("shorter than the headroom").fill(0);
                }
            }
        }
        let mut harness = Harness::builder().after(Fill).build::<Vlan>("op = 'push'\nid = 1").unwrap();
        assert_eq!(harness.run_one(&[0; 60]).fate, Fate::Dropped("no_headroom".to_owned()));
    }
}
