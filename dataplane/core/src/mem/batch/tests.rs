use proptest::prelude::*;

use super::*;
use crate::mem::{PageKind, Reason, Region, RegionSpec, SlotLayout};

const HEADROOM: u16 = 64;

fn pool() -> Pool {
    let layout = SlotLayout::new(HEADROOM.into(), 128, 64).unwrap();
    let region = RegionSpec { bytes: layout.bytes(), pages: PageKind::Normal, strict: false, node: None };
    Pool::new(Region::allocate(region).unwrap().0, layout).unwrap()
}

fn batch_of_one(pool: &mut Pool) -> Box<Batch> {
    let mut batch = Batch::new(pool);
    assert!(batch.push_bytes(&[0; 60], Stamp::NONE, pool));
    batch
}

#[test]
fn adding_a_packet_clears_the_plain_ipv4_mark() {
    let mut pool = pool();
    let adds: [fn(&mut Batch, &mut Batch, &mut Pool); 8] = [
        |to, from, _| to.append(from),
        |to, from, _| assert!(to.push_from(from, 0)),
        |to, from, pool| assert!(to.push_copy(from, 0, pool)),
        |to, _, pool| assert!(to.push_bytes(&[0; 60], Stamp::NONE, pool)),
        |to, _, pool| assert_eq!(to.push_copies(&[0; 60], 1, Stamp::NONE, pool, |_, _| {}), 1),
        |to, _, pool| {
            let slot = pool.take(1, SlotState::Batched).first().copied().unwrap();
            assert_eq!(to.receive(&[slot], &[60], 0, HEADROOM, Stamps::Alike(Stamp::NONE)), Some(60));
        },
        |to, _, pool| {
            to.take_spares(1, pool);
            assert!(to.generate(&[0; 60]).is_some());
        },
        |to, _, pool| {
            to.take_spares(1, pool);
            assert!(to.split_from(0, [0..10, 20..30]).is_some());
        },
    ];
    for (at, add) in adds.into_iter().enumerate() {
        let (mut to, mut from) = (batch_of_one(&mut pool), batch_of_one(&mut pool));
        to.set_plain_ipv4();
        add(&mut to, &mut from, &mut pool);
        assert!(
            to.len() == 2 && !to.is_plain_ipv4(),
            "operation {at}: {} packets, plain: {}",
            to.len(),
            to.is_plain_ipv4()
        );
    }
}

#[test]
fn plain_ipv4_mark_moves_with_the_packets_until_a_caller_may_change_their_headers() {
    let mut pool = pool();
    let (mut first, mut second) = (Batch::new(&pool), batch_of_one(&mut pool));
    second.set_plain_ipv4();
    first.append(&mut second);
    assert!(first.is_plain_ipv4());
    first.heads_keeping_plain_ipv4::<14>().for_each(|head| head.meta.egress = 1);
    assert!(first.is_plain_ipv4());
    second.append(&mut first);
    assert!(second.is_plain_ipv4() && second.get_mut(0).is_some() && !second.is_plain_ipv4());
    second.set_plain_ipv4();
    assert!(second.heads_mut::<14>().count() == 1 && !second.is_plain_ipv4());
}

#[test]
fn packet_that_follows_a_freed_packet_has_no_label() {
    let mut pool = pool();
    let mut batch = batch_of_one(&mut pool);
    batch.get_mut(0).unwrap().drop(Reason::of_stage(0));
    batch.free_into(&mut pool);
    assert!(batch.push_bytes(&[0; 60], Stamp::NONE, &mut pool));
    assert_eq!(batch.verdict(0), Verdict::Next);
}

#[test]
fn copies_of_a_frame_are_edited_one_by_one_and_no_other_packet_changes() {
    for len in [0, 1, 60, 64, 65, 128] {
        let mut pool = pool();
        let mut batch = Batch::new(&pool);
        let before: Vec<u8> = (0..128).collect();
        assert!(batch.push_bytes(&before, Stamp::NONE, &mut pool));
        let frame: Vec<u8> = (0..len).map(|at| 100 + at as u8).collect();
        let added = batch.push_copies(&frame, 3, Stamp::NONE, &mut pool, |index, data| {
            assert_eq!(data, frame);
            data.iter_mut().take(1).for_each(|byte| *byte = index as u8);
        });
        assert!(batch.push_bytes(&before, Stamp::NONE, &mut pool));
        assert_eq!((added, batch.len(), batch.bytes()), (3, 5, 256 + 3 * len as u64));
        for (index, (data, _)) in batch.contents().enumerate() {
            let mut expected = frame.clone();
            expected.iter_mut().take(1).for_each(|byte| *byte = (index as u8).wrapping_sub(1));
            assert_eq!(
                data,
                if index == 0 || index == 4 { &before } else { &expected },
                "packet {index} of {len} bytes"
            );
        }
        batch.free_into(&mut pool);
        assert_eq!(pool.available(), 64);
    }
}

#[test]
fn number_of_copies_is_limited_by_the_free_slots_and_the_space_and_the_length() {
    let mut pool = pool();
    let mut batch = Batch::new(&pool);
    assert_eq!(batch.push_copies(&[0; 129], 1, Stamp::NONE, &mut pool, |_, _| panic!("too long")), 0);
    let mut edited = 0;
    assert_eq!(batch.push_copies(&[0; 60], 1000, Stamp::NONE, &mut pool, |_, _| edited += 1), 64);
    assert_eq!((edited, batch.len(), pool.available()), (64, 64, 0));
    // `run` checks the bounds in debug builds.
    assert_eq!((batch.run().0.bounds().bytes, batch.run().0.bounds().shortest), (64 * 60, 60));
    assert_eq!(batch.push_copies(&[0; 60], 1, Stamp::NONE, &mut pool, |_, _| panic!("no slot")), 0);
    batch.free_into(&mut pool);
}

/// An operation on one batch or on two batches.
#[derive(Clone, Copy, Debug)]
enum Change {
    Append,
    Take(usize),
    Copy(usize),
    PushBytes,
    PushCopies(usize),
    Receive(usize),
    Generate,
    Trim(usize, usize),
    Prepend(usize),
    Retain(u32),
    Truncate(usize),
    Free,
    CompareAddresses,
    Swap,
}

fn change() -> impl Strategy<Value = Change> {
    let index = 0..6usize;
    prop_oneof![
        Just(Change::Append),
        index.clone().prop_map(Change::Take),
        index.clone().prop_map(Change::Copy),
        Just(Change::PushBytes),
        (1..5usize).prop_map(Change::PushCopies),
        (1..5usize).prop_map(Change::Receive),
        Just(Change::Generate),
        (index.clone(), 1..9usize).prop_map(|(at, by)| Change::Trim(at, by)),
        index.clone().prop_map(Change::Prepend),
        (1..4u32).prop_map(Change::Retain),
        index.prop_map(Change::Truncate),
        Just(Change::Free),
        Just(Change::CompareAddresses),
        Just(Change::Swap),
    ]
}

/// Returns the packet addresses in two ways: from the cached addresses (`Batch::starts`) and from the descriptors.
fn packet_addresses(batch: &mut Batch) -> [Vec<*const u8>; 2] {
    let located = batch.located_heads::<4>().map(|head| head.bytes.as_ptr()).collect();
    [located, batch.heads_keeping_plain_ipv4::<4>().map(|head| head.bytes.as_ptr()).collect()]
}

proptest! {
    /// The cached packet addresses are correct after any sequence of operations.
    #[test]
    fn cached_addresses_match_the_descriptors(changes in prop::collection::vec(change(), 1..60)) {
        let mut pool = pool();
        let (mut one, mut other) = (batch_of_one(&mut pool), batch_of_one(&mut pool));
        for change in changes {
            match change {
                Change::Append => one.append(&mut other),
                Change::Take(index) if index < other.len() => {
                    one.push_from(&other, index);
                    let taken = other.descs()[index];
                    for at in (0..other.len()).filter(|at| other.descs()[*at] != taken) {
                        other.free_one(at, &mut pool);
                    }
                    other.clear_labels();
                    other.forget();
                }
                Change::Copy(index) => _ = one.push_copy(&mut other, index, &mut pool),
                Change::PushBytes => _ = one.push_bytes(&[0; 60], Stamp::NONE, &mut pool),
                Change::PushCopies(n) => _ = one.push_copies(&[0; 70], n, Stamp::NONE, &mut pool, |_, _| {}),
                Change::Receive(n) => {
                    let slots: Vec<u32> = (0..n).filter_map(|_| pool.take(1, SlotState::Batched).first().copied()).collect();
                    let lengths = vec![60; slots.len()];
                    prop_assert!(one.receive(&slots, &lengths, 0, HEADROOM, Stamps::Alike(Stamp::NONE)).is_some());
                }
                Change::Generate => {
                    one.take_spares(1, &mut pool);
                    _ = one.generate(&[0; 60]);
                    one.return_spares(&mut pool);
                }
                Change::Trim(index, by) => _ = one.get_mut(index).is_some_and(|mut packet| packet.trim_front(by)),
                Change::Prepend(index) => _ = one.get_mut(index).is_some_and(|mut packet| packet.prepend(2).is_some()),
                Change::Retain(of) => _ = one.retain_into(&mut pool, |desc| desc.slot % of == 0),
                Change::Truncate(len) => one.truncate(len, &mut pool),
                Change::Free => one.free_into(&mut pool),
                Change::CompareAddresses => {
                    let [located, exact] = packet_addresses(&mut one);
                    prop_assert_eq!(located, exact);
                }
                Change::Swap => std::mem::swap(&mut one, &mut other),
                Change::Take(_) => {}
            }
        }
        let [located, exact] = packet_addresses(&mut one);
        prop_assert_eq!(located, exact);
    }
}
