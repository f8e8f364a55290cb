//! Tests with the fake device, which simulates drivers that lack features, fail or return garbage.
//!
//! A run is a burst: packets that one call posts, or completions that one call polls into arrays.

use std::ptr::NonNull;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ibverbs_sys::{IBV_RAW_PACKET_CAP_IP_CSUM, ibv_async_event, ibv_async_event__bindgen_ty_1, ibv_device_attr_ex};
use proptest::prelude::*;

use crate::channel::VerbsChannel;
use crate::context::Context;
use crate::fake::{Call, Completion as FakeCompletion, Fake, Op, Poll, with_domains, with_windows};
use crate::ffi::{VerbsContext, Wc};
use crate::{VerbsAh, VerbsCq, VerbsDevice, VerbsMr, VerbsPd, VerbsQp, cq, event};
use dataplane_core::clock::ClockSource;
use dataplane_core::error::VerbError;
use dataplane_core::mem::{Desc, PageKind, Region, RegionSpec, RunSource, SlotLayout};
use dataplane_core::units::{Lkey, QpNum, Rkey, Ticks};
use dataplane_core::verbs::*;

fn attributes() -> ibv_device_attr_ex {
    let mut attr = ibv_device_attr_ex::default();
    let basic = &mut attr.orig_attr;
    (basic.max_qp_wr, basic.max_sge, basic.max_cqe, basic.phys_port_cnt) = (1000, 8, 1000, 1);
    (basic.max_qp_rd_atom, basic.max_qp_init_rd_atom) = (16, 16);
    attr.raw_packet_caps = IBV_RAW_PACKET_CAP_IP_CSUM;
    attr
}

/// Creates a fake device and its context. Drop the objects of the device before the device.
fn device(change: impl FnOnce(&mut VerbsContext)) -> (Fake, Arc<Context>) {
    let fake = Fake::with_attributes(attributes(), change);
    let raw = NonNull::new(fake.context()).unwrap();
    // SAFETY: the context is open and belongs to the fake.
    let context = unsafe { Context::new(raw, "fake".to_owned()) }.unwrap();
    (fake, Arc::new(context))
}

fn cq_spec(fields: PollFields, flags: CqFlags) -> CqSpec {
    CqSpec { depth: 16, fields, flags, ..CqSpec::default() }
}

fn create(context: &Arc<Context>, spec: &CqSpec) -> (VerbsCq, CqGranted) {
    cq::create(context, spec, None, None, || (CqApi::Extended, None)).unwrap()
}

fn misuse(calls: &[Call]) -> Vec<&Call> {
    calls.iter().filter(|call| matches!(call, Call::Misuse(_))).collect()
}

/// Returns a completion with a value in every field.
fn full(wr_id: u64) -> FakeCompletion {
    let wc = Wc {
        wr_id,
        opcode: 128,
        byte_len: 100,
        imm_data: 0x0102_0304,
        qp_num: 77,
        src_qp: 88,
        wc_flags: 3,
        slid: 5,
        sl: 6,
        dlid_path_bits: 7,
        pkey_index: 4,
        ..Wc::default()
    };
    FakeCompletion { wc, ticks: 1000 + wr_id, wallclock: 2000 + wr_id, cvlan: 12, flow_tag: 34, tag: 56, private: 78 }
}

#[test]
fn driver_without_extended_cq_is_polled_with_poll_cq() {
    let (fake, context) = device(|verbs| verbs.create_cq_ex = None);
    let (mut cq, granted) = create(&context, &cq_spec(PollFields::all(), CqFlags::all()));
    let fields = PollFields::STANDARD | PollFields::CHECKSUM;
    assert_eq!((granted.api, granted.fields, granted.flags), (CqApi::Classic, fields, CqFlags::empty()));
    assert_eq!(granted.stamps, ClockSource::None);
    use Capability as C;
    let mut all = [
        C::ExtendedCq,
        C::Timestamps,
        C::WallclockTimestamps,
        C::SingleThreaded,
        C::IgnoreOverrun,
        C::FlowTag,
        C::Cvlan,
        C::RssHash,
        C::TagMatching,
    ];
    all.sort_unstable();
    assert_eq!(granted.refused, all);
    let extended = granted.why.iter().find(|line| line.starts_with("missing extended_cq: ")).unwrap();
    assert!(extended.contains("ibv_create_cq_ex"), "{extended}");
    fake.polls(1, (0..40).map(|wr_id| Poll::Wc(full(wr_id))));
    let cursor = cq.start_poll().unwrap().unwrap();
    let got = cursor.get();
    drop(cursor);
    assert_eq!((got.wr_id, got.byte_len(), got.imm()), (0, Some(100), Some(0x0102_0304)));
    assert_eq!((got.qp_num(), got.src_qp()), (Some(QpNum(77)), Some(QpNum(88))));
    assert_eq!((got.slid(), got.sl(), got.dlid_path_bits()), (Some(5), Some(6), Some(7)));
    // mlx5 returns a part of the immediate data as the index of the partition key.
    assert_eq!(got.pkey_index(), None);
    assert_eq!((got.ticks(), got.wallclock(), got.cvlan(), got.flow_tag()), (None, None, None, None));
    let mut run = Completions::new();
    // The limits are 10, 256 and 256. The first two polls return the 31 completions that the cursor copied and did not
    // consume. The third poll returns the 8 completions that were not copied.
    let counts = [10, 256, 256].map(|limit| cq.poll_run(&mut run, limit).unwrap());
    assert_eq!(counts, [10, 21, 8]);
    assert_eq!((run.wr_id[7], run.byte_len[7]), (39, 100));
    drop(cq);
    assert_eq!(fake.live(), 0);
}

/// Only a receive without immediate data and without an invalidation has the index of the partition key.
#[test]
fn partition_key_index_is_absent_if_the_completion_has_immediate_data() {
    let (fake, context) = device(|verbs| verbs.create_cq_ex = None);
    let (mut cq, _) = create(&context, &cq_spec(PollFields::STANDARD, CqFlags::empty()));
    let (with_grh, with_imm, with_inv) = (1, 2, 8);
    let flags = [with_grh, with_grh | with_imm, with_inv];
    let received = |wc_flags| Wc { wc_flags, pkey_index: 0x304, ..full(1).wc };
    fake.polls(1, flags.map(|flags| Poll::Wc(FakeCompletion { wc: received(flags), ..full(1) })));
    let mut cursor = cq.start_poll().unwrap().unwrap();
    let mut got = vec![cursor.get()];
    while cursor.advance().unwrap() {
        got.push(cursor.get());
    }
    assert_eq!(got.iter().map(Completion::pkey_index).collect::<Vec<_>>(), [Some(0x304), None, None]);
    assert_eq!((got[1].imm(), got[2].invalidated_rkey()), (Some(0x0102_0304), Some(Rkey(0x0102_0304))));
}

/// On Ethernet, the fields of the InfiniBand path have no meaning, so the provider does not request the fields.
#[test]
fn completion_of_an_ethernet_device_has_no_infiniband_path() {
    for api in [CqApi::Classic, CqApi::Extended] {
        let fake = Fake::with_attributes(attributes(), |_| {});
        fake.has_ethernet_port();
        // SAFETY: the context is open and belongs to the fake.
        let context = unsafe { Context::new(NonNull::new(fake.context()).unwrap(), "fake".to_owned()) }.unwrap();
        let spec = CqSpec { api, ..cq_spec(PollFields::STANDARD, CqFlags::empty()) };
        let (mut cq, granted) = create(&Arc::new(context), &spec);
        let path = PollFields::SLID | PollFields::SL | PollFields::DLID_PATH_BITS;
        assert_eq!((granted.fields, granted.refused), (PollFields::STANDARD - path, Vec::new()));
        fake.polls(1, [Poll::Wc(full(1))]);
        let got = cq.start_poll().unwrap().unwrap().get();
        assert_eq!((got.byte_len(), got.src_qp()), (Some(100), Some(QpNum(88))));
        assert_eq!((got.slid(), got.sl(), got.dlid_path_bits()), (None, None, None), "{api:?}");
    }
}

#[test]
fn port_reports_whether_it_requires_a_grh() {
    for is_ethernet in [false, true] {
        let fake = Fake::with_attributes(attributes(), |_| {});
        if is_ethernet {
            fake.has_ethernet_port();
        }
        // SAFETY: the context is open and belongs to the fake.
        let device = unsafe { VerbsDevice::new(NonNull::new(fake.context()).unwrap(), "fake".to_owned()) }.unwrap();
        assert_eq!(device.port(1).unwrap().grh_required, !is_ethernet);
    }
}

#[test]
fn only_requested_fields_are_read() {
    for field in PollFields::all() - PollFields::RSS_HASH {
        let (fake, context) = device(|_| {});
        fake.matches_tags();
        let (mut cq, granted) = create(&context, &cq_spec(field, CqFlags::empty()));
        assert_eq!((granted.fields, granted.api), (field, CqApi::Extended));
        assert!(granted.refused.is_empty() && granted.why.is_empty());
        fake.polls(1, [Poll::Wc(full(9))]);
        // The reader of a field that was not requested is an invalid pointer, so a call of this reader would crash the
        // test.
        let got = cq.start_poll().unwrap().unwrap().get();
        assert_eq!((got.wr_id, got.opcode()), (9, Some(WcOpcode::Recv)));
        let has = |this| field == this;
        assert_eq!(got.byte_len(), has(PollFields::BYTE_LEN).then_some(100));
        assert_eq!(got.imm(), has(PollFields::IMM).then_some(0x0102_0304));
        assert_eq!(got.qp_num(), has(PollFields::QP_NUM).then_some(QpNum(77)));
        assert_eq!(got.src_qp(), has(PollFields::SRC_QP).then_some(QpNum(88)));
        assert_eq!(got.slid(), has(PollFields::SLID).then_some(5));
        assert_eq!(got.sl(), has(PollFields::SL).then_some(6));
        assert_eq!(got.dlid_path_bits(), has(PollFields::DLID_PATH_BITS).then_some(7));
        assert_eq!(got.ticks(), has(PollFields::TIMESTAMP).then_some(Ticks(1009)));
        assert_eq!(got.wallclock().map(|nanos| nanos.0), has(PollFields::WALLCLOCK).then_some(2009));
        assert_eq!(got.cvlan(), has(PollFields::CVLAN).then_some(12));
        assert_eq!(got.flow_tag(), has(PollFields::FLOW_TAG).then_some(34));
        let tag = TagInfo { tag: 56, private: 78 };
        assert_eq!(got.tag_info(), has(PollFields::TM_INFO).then_some(tag));
        // The extended interface has no reader for this field.
        assert_eq!(got.pkey_index(), None);
        assert_eq!(misuse(&fake.calls()), Vec::<&Call>::new());
    }
}

#[test]
fn error_completion_exposes_only_valid_fields() {
    for classic in [false, true] {
        let (fake, context) = device(|verbs| {
            if classic {
                verbs.create_cq_ex = None;
            }
        });
        let (mut cq, _) = create(&context, &cq_spec(PollFields::STANDARD | PollFields::TIMESTAMP, CqFlags::empty()));
        let failed = Wc { status: 12, vendor_err: 0x81, ..full(5).wc };
        fake.polls(1, [Poll::Wc(FakeCompletion { wc: failed, ..full(5) }), Poll::Wc(full(6))]);
        let mut cursor = cq.start_poll().unwrap().unwrap();
        let got = cursor.get();
        assert_eq!((got.wr_id, got.status, got.vendor_err), (5, WcStatus::RetryExcErr, 0x81));
        assert_eq!(got.qp_num(), Some(QpNum(77)));
        assert_eq!((got.opcode(), got.flags(), got.byte_len(), got.imm()), (None, None, None, None));
        assert_eq!((got.src_qp(), got.slid(), got.sl(), got.dlid_path_bits()), (None, None, None, None));
        assert_eq!((got.ticks(), got.invalidated_rkey(), got.pkey_index()), (None, None, None));
        assert!(cursor.advance().unwrap());
        let got = cursor.get();
        assert_eq!((got.wr_id, got.status, got.vendor_err, got.byte_len()), (6, WcStatus::Success, 0, Some(100)));
    }
}

/// Every status of verbs.h, and a number without a name, is reported unchanged by every poll interface.
#[test]
fn every_status_is_reported_unchanged() {
    for api in [CqApi::Classic, CqApi::Extended, CqApi::ExtendedSingle] {
        let (fake, context) = device(|_| {});
        let (mut cq, _) = create(&context, &CqSpec { api, ..cq_spec(PollFields::STANDARD, CqFlags::empty()) });
        let raw: Vec<u32> = (0..24).chain([99]).collect();
        let polls =
            raw.iter().map(|status| Poll::Wc(FakeCompletion { wc: Wc { status: *status, ..full(1).wc }, ..full(1) }));
        fake.polls(1, polls);
        let mut got = Vec::new();
        while let Some(mut cursor) = cq.start_poll().unwrap() {
            got.push(cursor.get().status);
            while cursor.advance().unwrap() {
                got.push(cursor.get().status);
            }
        }
        assert_eq!(got.iter().map(|status| status.raw()).collect::<Vec<_>>(), raw, "{api:?}");
        let named = got.iter().filter(|status| WcStatus::from_name(status.name()) == Some(**status)).count();
        assert_eq!((named, got[24]), (24, WcStatus::Unknown(99)));
    }
}

#[test]
fn polled_run_contains_the_granted_timestamp() {
    for (fields, source, stamp) in [
        (PollFields::TIMESTAMP, ClockSource::DeviceTicks, 1003),
        (PollFields::WALLCLOCK, ClockSource::DeviceWallclock, 2003),
        (PollFields::TIMESTAMP | PollFields::WALLCLOCK, ClockSource::DeviceWallclock, 2003),
        (PollFields::BYTE_LEN, ClockSource::None, 0),
    ] {
        let (fake, context) = device(|_| {});
        let (mut cq, granted) = create(&context, &cq_spec(fields, CqFlags::empty()));
        assert_eq!(granted.stamps, source);
        fake.polls(1, [Poll::Wc(full(3)), Poll::Wc(full(3))]);
        // A poll that follows a dropped cursor returns the same timestamp as a poll without a cursor.
        drop(cq.start_poll().unwrap());
        let mut run = Completions::new();
        assert_eq!((cq.poll_run(&mut run, 9), run.ticks[0]), (Ok(1), Ticks(stamp)));
        fake.polls(1, [Poll::Wc(full(3))]);
        assert_eq!((cq.poll_run(&mut run, 9), run.ticks[0]), (Ok(1), Ticks(stamp)));
    }
}

/// A run contains the receive information that was requested and granted, on every poll interface.
#[test]
fn polled_run_contains_the_requested_receive_information() {
    let of = |flags: RecvFlags, vlan, flow_tag| RecvInfo { flags, vlan, flow_tag, hash: 0 };
    let (sum, stripped) = (RecvFlags::CHECKSUM_OK, RecvFlags::VLAN_STRIPPED);
    for (api, fields, with_sum, without) in [
        (CqApi::Extended, PollFields::RECV_INFO, of(sum | stripped, 12, 34), of(stripped, 12, 34)),
        (CqApi::ExtendedSingle, PollFields::RECV_INFO, of(sum | stripped, 12, 34), of(stripped, 12, 34)),
        (CqApi::Extended, PollFields::CVLAN, of(stripped, 12, 0), of(stripped, 12, 0)),
        (CqApi::Extended, PollFields::FLOW_TAG, of(RecvFlags::empty(), 0, 34), of(RecvFlags::empty(), 0, 34)),
        (CqApi::Extended, PollFields::CHECKSUM, of(sum, 0, 0), RecvInfo::default()),
        // `struct ibv_wc` contains the flags, but neither the VLAN tag nor the flow tag.
        (CqApi::Classic, PollFields::RECV_INFO, of(sum, 0, 0), RecvInfo::default()),
    ] {
        let (fake, context) = device(|_| {});
        let spec = CqSpec { api, ..cq_spec(PollFields::BYTE_LEN | fields, CqFlags::empty()) };
        let (mut cq, granted) = create(&context, &spec);
        let hash = fields.contains(PollFields::RSS_HASH);
        assert_eq!(granted.refused.contains(&Capability::RssHash), hash);
        let hash_reason = "missing rss_hash: completions of libibverbs have no RSS hash";
        assert_eq!(granted.why.iter().any(|line| line == hash_reason), hash, "{:?}", granted.why);
        let checked = Wc { wc_flags: 1 << 2, ..full(1).wc };
        let failed = Wc { status: 5, ..full(2).wc };
        let polls = [checked, failed, full(3).wc];
        let mut run = Completions::new();
        // In the second round, a cursor takes the first completion and copies the others. `poll_run` then returns the
        // copies.
        for skipped in [0, 1] {
            fake.polls(1, polls.map(|wc| Poll::Wc(FakeCompletion { wc, ..full(wc.wr_id) })));
            if skipped == 1 {
                drop(cq.start_poll().unwrap());
            }
            assert_eq!(cq.poll_run(&mut run, 9), Ok(3 - skipped));
            assert!(run.has_info && run.failed);
            let expected = [with_sum, RecvInfo::default(), without];
            assert_eq!(run.info[..run.len], expected[skipped..], "{api:?} {fields:?}");
            assert_eq!(run.byte_len[..run.len], [100, 0, 100][skipped..]);
        }
        assert_eq!(misuse(&fake.calls()), Vec::<&Call>::new());
    }
    // Without a request, a run has no receive information.
    let (fake, context) = device(|_| {});
    let (mut cq, _) = create(&context, &cq_spec(PollFields::STANDARD | PollFields::TIMESTAMP, CqFlags::empty()));
    fake.polls(1, [Poll::Wc(full(1))]);
    let mut run = Completions::new();
    run.has_info = true;
    assert_eq!((cq.poll_run(&mut run, 9), run.has_info), (Ok(1), false));
}

/// A limit of 0 takes no completion. A limit above the number of entries of a run (`MAX_RUN`) counts as `MAX_RUN`.
#[test]
fn polled_run_has_at_most_its_limit_of_completions() {
    for fields in [PollFields::STANDARD, PollFields::STANDARD | PollFields::CHECKSUM] {
        let (fake, context) = device(|_| {});
        let (mut cq, _) = create(&context, &cq_spec(fields, CqFlags::empty()));
        let mut run = Completions::new();
        run.len = 7;
        assert_eq!((cq.poll_run(&mut run, 0), run.len), (Ok(0), 0));
        fake.polls(1, [Poll::Wc(full(1)), Poll::Wc(full(2))]);
        assert_eq!((cq.poll_run(&mut run, 0), run.len), (Ok(0), 0));
        assert_eq!((cq.poll_run(&mut run, 1), run.len, run.wr_id[0]), (Ok(1), 1, 1));
        assert_eq!((cq.poll_run(&mut run, MAX_RUN + 1), run.len, run.wr_id[0]), (Ok(1), 1, 2));
    }
}

/// If a device does not verify checksums, the field `CHECKSUM` is refused, and the refusal names the capability.
#[test]
fn checksum_field_is_refused_if_the_device_verifies_no_checksums() {
    let fake = Fake::with_attributes(ibv_device_attr_ex { raw_packet_caps: 0, ..attributes() }, |_| {});
    // SAFETY: the context is open and belongs to the fake.
    let context = unsafe { Context::new(NonNull::new(fake.context()).unwrap(), "fake".to_owned()) }.unwrap();
    let (_cq, granted) = create(&Arc::new(context), &cq_spec(PollFields::CHECKSUM, CqFlags::empty()));
    assert_eq!((granted.fields, &granted.refused[..]), (PollFields::empty(), &[Capability::RxChecksum][..]));
    assert_eq!(
        granted.why,
        ["missing rx_checksum: the device does not check the checksums of received packets".to_owned()]
    );
}

/// If a driver refuses the flag `SINGLE_THREADED`, the queue is created in a single-threaded domain instead. Such a
/// queue has no lock either.
#[test]
fn queue_without_lock_is_created_in_a_thread_domain() {
    let (fake, context) = device(with_domains);
    fake.lacks(0, CqFlags::SINGLE_THREADED.bits(), libc::EOPNOTSUPP);
    let (cq, granted) = create(&context, &cq_spec(PollFields::BYTE_LEN, CqFlags::SINGLE_THREADED));
    assert_eq!((granted.flags, &granted.refused[..]), (CqFlags::SINGLE_THREADED, &[][..]));
    let calls = fake.calls();
    assert_eq!(misuse(&calls), Vec::<&Call>::new());
    let made = |call: &Call| match call {
        Call::CreateCqEx { comp_mask, flags, .. } => Some((*comp_mask, *flags)),
        _ => None,
    };
    // The three attempts: with the flag, without the flag, and in a single-threaded domain.
    assert_eq!(calls.iter().filter_map(made).collect::<Vec<_>>(), [(1, 1), (0, 0), (2, 0)]);
    drop(cq);
    assert_eq!(fake.live(), 0, "the domains are freed with the queue");
}

/// A completion queue is created in the parent domain of the caller, with or without the flag `SINGLE_THREADED`.
#[test]
fn queue_is_created_in_the_parent_domain_of_the_program() {
    let ((fake, context), (other_fake, other)) = (device(with_domains), device(with_domains));
    let pd = VerbsPd::alloc(&context).unwrap();
    let parent = pd.alloc_parent().unwrap();
    let foreign = VerbsPd::alloc(&other).unwrap().alloc_parent().unwrap();
    assert!(parent.is(&pd) && pd.is(&parent));
    assert_eq!(parent.alloc_parent().map(drop).unwrap_err().errno, libc::EINVAL);
    let make = |domain: &VerbsPd, api, flags| {
        let spec = CqSpec { api, ..cq_spec(PollFields::BYTE_LEN, flags) };
        cq::create(&context, &spec, Some(domain), None, || (CqApi::Extended, None))
    };
    let domains = |calls: Vec<Call>| -> Vec<(u32, u32)> {
        assert_eq!(misuse(&calls), Vec::<&Call>::new());
        let created = calls.into_iter().filter_map(|call| match call {
            Call::CreateCqEx { comp_mask, parent_domain, .. } => Some((comp_mask, parent_domain)),
            _ => None,
        });
        created.collect()
    };
    fake.calls();
    let (first, _) = make(&parent, CqApi::Auto, CqFlags::empty()).unwrap();
    let (second, granted) = make(&parent, CqApi::Extended, CqFlags::SINGLE_THREADED).unwrap();
    // In each pair, the second number is the domain: 1 is the protection domain, and 2 is the parent domain. The first
    // number is `comp_mask`: bit 0 stands for flags, and bit 1 for a domain.
    assert_eq!(domains(fake.calls()), [(2, 2), (3, 2)]);
    assert_eq!(granted.flags, CqFlags::SINGLE_THREADED);
    for (domain, api, errno) in [
        (&pd, CqApi::Auto, libc::EINVAL),
        (&foreign, CqApi::Auto, libc::EINVAL),
        (&parent, CqApi::Classic, libc::EOPNOTSUPP),
    ] {
        assert_eq!(make(domain, api, CqFlags::empty()).map(drop).unwrap_err().errno, errno);
    }
    // If the driver refuses the flag, the queue is created in a new single-threaded domain (3), which extends the same
    // protection domain.
    fake.lacks(0, CqFlags::SINGLE_THREADED.bits(), libc::EOPNOTSUPP);
    fake.calls();
    let (third, granted) = make(&parent, CqApi::Auto, CqFlags::SINGLE_THREADED).unwrap();
    assert_eq!((domains(fake.calls()), granted.flags), (vec![(3, 2), (2, 2), (2, 3)], CqFlags::SINGLE_THREADED));
    drop((parent, pd, foreign, first, second, third));
    assert_eq!((fake.live(), other_fake.live()), (0, 0), "the domains are freed with the queues");
    let (_fake, context) = device(|_| {});
    let refused = VerbsPd::alloc(&context).unwrap().alloc_parent().map(drop).unwrap_err();
    assert_eq!((refused.verb, refused.errno), ("ibv_alloc_parent_domain", libc::EOPNOTSUPP));
}

const FIELDS: [PollFields; 5] =
    [PollFields::TIMESTAMP, PollFields::CVLAN, PollFields::FLOW_TAG, PollFields::WALLCLOCK, PollFields::SLID];

proptest! {
    /// Any set of features may be missing. All other features are granted, and each missing feature is reported with
    /// its reason.
    #[test]
    fn only_missing_features_are_left_out(
        asked in proptest::sample::subsequence(&FIELDS[..], 0..=5),
        lacking in proptest::sample::subsequence(&FIELDS[..4], 0..=4),
        (flags, lacking_flags) in (0u32..4, 0u32..4),
        errno in proptest::sample::select(vec![libc::EOPNOTSUPP, libc::EINVAL]),
    ) {
        let asked = asked.into_iter().fold(PollFields::empty(), |all, field| all | field);
        let lacking = lacking.into_iter().fold(PollFields::empty(), |all, field| all | field);
        let (flags, lacking_flags) = (CqFlags::from_bits_truncate(flags), CqFlags::from_bits_truncate(lacking_flags));
        let (fake, context) = device(|_| {});
        fake.lacks(lacking.bits(), lacking_flags.bits(), errno);
        let (cq, granted) = create(&context, &cq_spec(asked, flags));
        prop_assert_eq!(granted.fields, asked - lacking);
        prop_assert_eq!(granted.flags, flags - lacking_flags);
        prop_assert_eq!(granted.api, CqApi::Extended);
        let left_out = ((asked & lacking).bits().count_ones() + (flags & lacking_flags).bits().count_ones()) as usize;
        prop_assert_eq!(granted.refused.len(), left_out);
        prop_assert_eq!(granted.why.len(), left_out);
        drop(cq);
        prop_assert_eq!(fake.live(), 0, "the queues of refused attempts are destroyed");
    }

    /// For any results of the driver, each completion is returned once and unchanged, and the order of the calls
    /// follows the man page.
    #[test]
    fn garbage_completions_are_returned_unchanged(
        script in proptest::collection::vec(
            prop_oneof![
                4 => (any::<u64>(), prop_oneof![Just(0u32), 0u32..24, any::<u32>()], any::<u32>(), any::<u32>())
                    .prop_map(|(wr_id, status, opcode, qp_num)| {
                        Poll::Wc(FakeCompletion { wc: Wc { wr_id, status, opcode, qp_num, ..full(0).wc }, ..full(0) })
                    }),
                1 => Just(Poll::ReturnCode(libc::ENOENT)),
                1 => Just(Poll::ReturnCode(libc::EBUSY)),
            ],
            0..60,
        ),
        runs in any::<bool>(),
        single in any::<bool>(),
    ) {
        let (fake, context) = device(|_| {});
        let api = if single { CqApi::ExtendedSingle } else { CqApi::Auto };
        let (mut cq, _) = create(&context, &CqSpec { api, ..cq_spec(PollFields::STANDARD, CqFlags::empty()) });
        let expected: Vec<(u64, u32)> = script.iter().filter_map(|poll| match poll {
            Poll::Wc(completion) => Some((completion.wc.wr_id, completion.wc.status)),
            Poll::ReturnCode(_) => None,
        }).collect();
        fake.polls(1, script.clone());
        let mut seen = Vec::new();
        let mut run = Completions::new();
        // Each poll ends with at most one return code, so this number of polls returns all results.
        for _ in 0..=script.len() {
            if runs {
                let n = cq.poll_run(&mut run, 7).unwrap();
                let status = |at: usize| if run.failed { run.status[at].raw() } else { 0 };
                seen.extend((0..n).map(|at| (run.wr_id[at], status(at))));
            } else if let Some(mut cursor) = cq.start_poll().unwrap() {
                loop {
                    seen.push((cursor.get().wr_id, cursor.get().status.raw()));
                    if !cursor.advance().unwrap() {
                        break;
                    }
                }
            }
        }
        prop_assert_eq!(seen, expected);
        let calls = fake.calls();
        prop_assert_eq!(misuse(&calls), Vec::<&Call>::new());
    }
}

#[test]
fn end_poll_is_called_exactly_when_required() {
    let start = |returned| Call::StartPoll { cq: 1, returned };
    let next = |returned| Call::NextPoll { cq: 1, returned };
    let end = Call::EndPoll { cq: 1 };
    let wc = |wr_id| Poll::wc(wr_id, 0);
    for (script, calls, returned, usable) in [
        (vec![], vec![start(libc::ENOENT)], Ok(0), true),
        (vec![Poll::ReturnCode(libc::EBUSY)], vec![start(libc::EBUSY)], Ok(0), true),
        (vec![Poll::ReturnCode(libc::EINVAL)], vec![start(libc::EINVAL)], Err(libc::EINVAL), false),
        (vec![Poll::ReturnCode(-2)], vec![start(-2)], Err(libc::EIO), false),
        (vec![wc(1)], vec![start(0), next(libc::ENOENT), end.clone()], Ok(1), true),
        (
            vec![wc(1), wc(2), Poll::ReturnCode(libc::EINVAL)],
            vec![start(0), next(0), next(libc::EINVAL), end.clone()],
            Ok(2),
            false,
        ),
        (vec![wc(1), Poll::ReturnCode(-2)], vec![start(0), next(-2), end.clone()], Ok(1), false),
        // The poll reaches its limit, so the fourth completion is not polled.
        (vec![wc(1), wc(2), wc(3), wc(4)], vec![start(0), next(0), next(0), end.clone()], Ok(3), true),
    ] {
        for by_cursor in [false, true] {
            let (fake, context) = device(|_| {});
            let (mut cq, _) = create(&context, &cq_spec(PollFields::BYTE_LEN, CqFlags::empty()));
            fake.calls();
            fake.polls(1, script.clone());
            let mut run = Completions::new();
            if by_cursor {
                let polled = cq.start_poll().map(|cursor| cursor.is_some()).map_err(|error| error.errno);
                assert_eq!(polled, returned.map(|n| n > 0), "{script:?}");
            } else {
                assert_eq!(cq.poll_run(&mut run, 3).map_err(|error| error.errno), returned, "{script:?}");
                assert_eq!(fake.calls(), calls, "{script:?}");
            }
            assert_eq!(misuse(&fake.calls()), Vec::<&Call>::new());
            // A broken queue is not polled again. The queue first returns the completions from before the error. Every
            // later poll returns the error.
            if by_cursor {
                // The cursor took the first completion and copied the others. A broken queue still returns the copies.
                let copied = returned.is_ok_and(|count| count > 1);
                assert_eq!(cq.poll_run(&mut run, 9).is_ok(), usable || copied, "{script:?}");
                fake.calls();
            }
            let again = cq.poll_run(&mut run, 3);
            assert_eq!(again.is_ok(), usable, "{script:?}");
            assert_eq!(fake.calls().is_empty(), !usable, "{script:?}");
        }
    }
}

#[test]
fn broken_classic_queue_stays_broken() {
    let (fake, context) = device(|verbs| verbs.create_cq_ex = None);
    let (mut cq, _) = create(&context, &cq_spec(PollFields::BYTE_LEN, CqFlags::empty()));
    fake.polls(1, [Poll::wc(1, 0), Poll::ReturnCode(-2), Poll::wc(2, 0)]);
    let mut run = Completions::new();
    assert_eq!(cq.poll_run(&mut run, 8), Ok(1));
    assert_eq!(cq.poll_run(&mut run, 8).unwrap_err().errno, libc::EIO);
    assert_eq!((run.len, cq.poll_run(&mut run, 8).unwrap_err().errno), (0, libc::EIO));
    // A count that is larger than the buffer also means a broken queue.
    let (mut cq, _) = create(&context, &cq_spec(PollFields::BYTE_LEN, CqFlags::empty()));
    fake.polls(2, [Poll::ReturnCode(9)]);
    assert_eq!(cq.poll_run(&mut run, 8).unwrap_err().errno, libc::EIO);
}

#[test]
fn missing_reader_counts_as_a_refused_field() {
    // The driver grants the fields for tag matching, but has no function that reads these fields.
    let (fake, context) = device(|_| {});
    let fields = PollFields::TM_INFO | PollFields::TIMESTAMP;
    let (cq, granted) = create(&context, &cq_spec(fields, CqFlags::empty()));
    assert_eq!((granted.fields, &granted.refused[..]), (PollFields::TIMESTAMP, &[Capability::TagMatching][..]));
    assert!(granted.why[0].contains("ibv_wc_read_tm_info"), "{:?}", granted.why);
    drop(cq);
    assert_eq!(fake.live(), 0);
}

#[test]
fn unreliable_poll_interface_is_avoided_with_a_reason() {
    let (_fake, context) = device(|_| {});
    let bad = || (CqApi::Classic, Some("it counts wrongly".to_owned()));
    let spec = cq_spec(PollFields::TIMESTAMP, CqFlags::SINGLE_THREADED);
    let (_cq, granted) = cq::create(&context, &spec, None, None, bad).unwrap();
    assert_eq!(granted.api, CqApi::Classic);
    assert!(granted.why.contains(&"missing extended_cq: it counts wrongly".to_owned()), "{:?}", granted.why);
    let (_cq, granted) = cq::create(&context, &CqSpec { api: CqApi::Extended, ..spec }, None, None, bad).unwrap();
    assert_eq!((granted.api, granted.fields), (CqApi::ExtendedSingle, PollFields::TIMESTAMP));
    assert!(granted.why.contains(&"it counts wrongly".to_owned()) && granted.refused.is_empty());
}

#[test]
fn out_of_memory_is_not_taken_for_a_missing_feature() {
    let (fake, context) = device(|_| {});
    fake.refuse("ibv_create_cq_ex", libc::ENOMEM);
    let made =
        cq::create(&context, &cq_spec(PollFields::all(), CqFlags::all()), None, None, || (CqApi::Extended, None));
    let error = made.err().unwrap();
    assert_eq!((error.verb, error.errno, fake.live()), ("ibv_create_cq_ex", libc::ENOMEM, 0));
    assert!(error.remedy().unwrap().contains("ulimit -l"));
}

#[test]
fn events_are_acknowledged_in_batches_and_before_destruction() {
    let (fake, context) = device(|_| {});
    let channel = VerbsChannel::create(&context).unwrap();
    let spec = cq_spec(PollFields::empty(), CqFlags::empty());
    let make = |context_of_user| {
        let spec = CqSpec { context: context_of_user, ..spec };
        cq::create(&context, &spec, None, Some(&channel), || (CqApi::Extended, None)).unwrap().0
    };
    let (first, second) = (make(11), make(22));
    assert_eq!((first.context(), second.context()), (11, 22));
    let raw = |cq: &VerbsCq| NonNull::new(cq.handle.raw()).unwrap();
    assert_eq!(channel.wait(Duration::ZERO), Ok(None));
    fake.completes(raw(&first), 70);
    fake.completes(raw(&second), 1);
    fake.calls();
    for _ in 0..70 {
        assert_eq!(channel.wait(Duration::ZERO), Ok(Some(first.number())));
    }
    assert_eq!(channel.wait_event(Duration::ZERO), Ok(Some(CqEvent { queue: second.number(), context: 22 })));
    let ack = |cq, events| Call::AckCq { cq, events };
    assert_eq!(fake.calls(), [ack(1, 32), ack(1, 32)]);
    drop(first);
    assert_eq!(fake.calls(), [ack(1, 6), Call::DestroyCq(1)]);
    drop((second, channel));
    assert_eq!(fake.calls(), [ack(2, 1), Call::DestroyCq(2)]);
    assert_eq!(fake.live(), 0);
}

#[test]
fn async_events_are_acknowledged_and_name_their_object() {
    let (fake, context) = device(|_| {});
    let (pd, cq, mut qp) = queue_pair(&context, QpType::Rc, SendApi::Classic);
    fake.calls();
    let of = |event_type, element| Ok(ibv_async_event { element, event_type });
    type Element = ibv_async_event__bindgen_ty_1;
    let number = qp.number().0;
    let events = [
        (EventKind::CqErr, Element { cq: cq.handle.raw() }, cq.number()),
        (EventKind::QpFatal, Element { qp: qp.raw() }, number),
        (EventKind::QpAccessErr, Element { qp: qp.raw() }, number),
        (EventKind::QpLastWqeReached, Element { qp: qp.raw() }, number),
        (EventKind::PortErr, Element { port_num: 2 }, 2),
        (EventKind::GidChange, Element { port_num: 1 }, 1),
        (EventKind::Unknown(99), Element { port_num: 3 }, 0),
    ];
    for (kind, element, number) in events {
        fake.happens(of(kind.raw(), element));
        let event = event::wait(&context, Duration::ZERO);
        assert_eq!(event, Some(AsyncEvent { kind, element: number }));
    }
    assert_eq!(fake.calls(), vec![Call::AckAsync; 4], "the other events refer to no object");
    assert_eq!(event::wait(&context, Duration::ZERO), None);
    // The removal of the device is reported only once.
    fake.happens(Err(libc::EIO));
    let gone = Some(AsyncEvent { kind: EventKind::DeviceFatal, element: 0 });
    assert_eq!(event::wait(&context, Duration::ZERO), gone);
    assert_eq!(event::wait(&context, Duration::from_millis(1)), None);
    qp.modify(&QpAttributes::to(QpState::Reset).0, AttributeMask::STATE).unwrap();
    drop((pd, cq, qp));
}

const CAPS: QpCaps = QpCaps { send_depth: 100, recv_depth: 100, send_sges: 4, recv_sges: 4, inline: 64 };

/// Creates a queue pair in RTS.
fn queue_pair(context: &Arc<Context>, kind: QpType, send_api: SendApi) -> (VerbsPd, VerbsCq, VerbsQp) {
    let pd = VerbsPd::alloc(context).unwrap();
    let (cq, _) = create(context, &cq_spec(PollFields::STANDARD, CqFlags::empty()));
    let spec = QpSpec { send_api, ..QpSpec::new(kind, CAPS) };
    let mut qp = pd.create_qp(&spec, &cq, &cq, None).unwrap();
    for (attributes, mask) in changes_to_rts(kind) {
        qp.modify(&attributes, mask).unwrap();
    }
    (pd, cq, qp)
}

/// Returns the state changes from RESET to RTS.
pub(super) fn changes_to_rts(kind: QpType) -> [(QpAttributes, AttributeMask); 3] {
    type M = AttributeMask;
    let rtr = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    let rts = M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC;
    let (rtr, rts) = match kind {
        QpType::Rc => (rtr, rts),
        QpType::Ud => (M::empty(), M::SQ_PSN),
        _ => (M::empty(), M::empty()),
    };
    let to = |state| QpAttributes { state, max_rd_atomic: 1, ..QpAttributes::default() };
    [QpAttributes::init(kind, 1, 0), (to(QpState::Rtr), M::STATE | rtr), (to(QpState::Rts), M::STATE | rts)]
}

const SGE: [Sge; 2] = [Sge { addr: 100, length: 8, lkey: Lkey(1) }, Sge { addr: 200, length: 4, lkey: Lkey(2) }];

/// The two halves of 8 bytes.
const HALVES: [Sge; 2] = [Sge { addr: 100, length: 4, lkey: Lkey(1) }, Sge { addr: 104, length: 4, lkey: Lkey(1) }];

fn requests(count: u64) -> Vec<SendRequest<'static, VerbsAh>> {
    let request =
        |wr_id| SendRequest { wr_id, op: SendOp::Send, flags: SendFlags::SIGNALED, sges: &SGE[..1], to: None };
    (0..count).map(request).collect()
}

/// Returns, for each posted list, the `wr_id`s of its requests.
fn lists(calls: &[Call]) -> Vec<Vec<u64>> {
    let ids = |call: &Call| match call {
        Call::PostSend(list) => Some(list.iter().map(|send| send.wr_id).collect()),
        Call::PostRecv(list) => Some(list.iter().map(|recv| recv.wr_id).collect()),
        _ => None,
    };
    calls.iter().filter_map(ids).collect()
}

#[test]
fn partly_failed_post_reports_accepted_count() {
    let (fake, context) = device(|_| {});
    let (_pd, _cq, mut qp) = queue_pair(&context, QpType::Rc, SendApi::Classic);
    let sends = requests(10);
    let recvs: Vec<_> = (0..10).map(|wr_id| RecvRequest { wr_id, sges: &SGE }).collect();
    fake.calls();
    for at in [0, 3, 9] {
        fake.refuse_at("ibv_post_send", libc::ENOMEM, Some(at));
        fake.refuse_at("ibv_post_recv", libc::EINVAL, Some(at));
        // SAFETY: the fake device moves no data.
        let answers = unsafe { (qp.post_send(&sends), qp.post_recv(&recvs)) };
        let (send, recv) = (answers.0.unwrap_err(), answers.1.unwrap_err());
        assert_eq!((send.accepted, send.error.errno), (at, libc::ENOMEM));
        assert_eq!((recv.accepted, recv.error.errno), (at, libc::EINVAL));
        assert_eq!(qp.state(), QpState::Rts);
        fake.refuse("ibv_post_send", 0);
        fake.refuse("ibv_post_recv", 0);
        fake.calls();
        // The lists are intact after a failed post: no request is posted twice or omitted. One call posts each list.
        // SAFETY: same as above.
        unsafe { (qp.post_send(&sends).unwrap(), qp.post_recv(&recvs).unwrap()) };
        let all: Vec<u64> = (0..10).collect();
        assert_eq!(lists(&fake.calls()), [all.clone(), all]);
    }
}

#[test]
fn post_failure_without_position_stops_the_queue_pair() {
    // The driver does not report which request failed, so the queue pair must change to ERR. If the device refuses this
    // change, the device may execute any of the requests later.
    for (verb, stops) in
        [("ibv_post_send", true), ("ibv_post_recv", true), ("ibv_post_send", false), ("ibv_post_recv", false)]
    {
        let (fake, context) = device(|_| {});
        let (_pd, _cq, mut qp) = queue_pair(&context, QpType::Rc, SendApi::Classic);
        fake.refuse_at(verb, libc::EINVAL, None);
        if !stops {
            fake.refuse_qp_state(1, QpState::Err.raw());
        }
        fake.calls();
        // SAFETY: the device moves no data.
        let refused = unsafe {
            match verb {
                "ibv_post_send" => qp.post_send(&requests(3)),
                _ => qp.post_recv(&[RecvRequest { wr_id: 1, sges: &SGE }; 3]),
            }
        };
        assert_eq!(refused.unwrap_err().accepted, if stops { 0 } else { 3 });
        assert_eq!(qp.state(), QpState::Err);
        let stopped = Call::ModifyQp { qp: 1, mask: 1, state: 6, port: 0, rate_limit: 0 };
        assert!(fake.calls().contains(&stopped));
    }
}

#[test]
fn requests_before_an_invalid_request_are_posted() {
    let (fake, context) = device(|_| {});
    let (_pd, _cq, mut qp) = queue_pair(&context, QpType::Rc, SendApi::Classic);
    fake.calls();
    let good = requests(3);
    let five = [SGE[0]; 5];
    let long = [Sge { length: (1 << 20) + 1, ..SGE[0] }];
    let wrong = |op, flags, sges| SendRequest { wr_id: 9, op, flags, sges, to: None };
    let remote = |addr| Remote { addr, rkey: Rkey(3) };
    let add = |addr| SendOp::FetchAdd { remote: remote(addr), add: 1 };
    let none = SendFlags::empty();
    let inline = SendFlags::INLINE;
    let long_inline = [Sge { length: 65, ..SGE[0] }];
    for bad in [
        wrong(SendOp::Send, none, &five),
        wrong(SendOp::Send, none, &long),
        wrong(SendOp::Send, inline, &long_inline),
        wrong(add(4), none, &SGE[..1]),
        wrong(add(8), none, &SGE),
        wrong(add(8), none, &[]),
        wrong(add(8), none, &HALVES),
        wrong(add(8), inline, &SGE[..1]),
        wrong(SendOp::RdmaRead(remote(0)), inline, &SGE[..1]),
    ] {
        let mut list = good.clone();
        list.extend([bad, good[0]]);
        // SAFETY: the device moves no data.
        let refused = unsafe { qp.post_send(&list) }.unwrap_err();
        assert_eq!((refused.accepted, refused.error.errno), (3, libc::EINVAL), "{bad:?}");
        assert_eq!(lists(&fake.calls()), [[0, 1, 2]]);
    }
    // SAFETY: same as above.
    let refused =
        unsafe { qp.post_recv(&[RecvRequest { wr_id: 1, sges: &SGE }, RecvRequest { wr_id: 2, sges: &five }]) };
    assert_eq!(refused.unwrap_err().accepted, 1);
    assert_eq!(lists(&fake.calls()), [[1]]);
    // SAFETY: same as above.
    unsafe { qp.post_send(&[wrong(add(8), none, &SGE[..1])]) }.unwrap();
    let Call::PostSend(list) = &fake.calls()[0] else { panic!() };
    assert_eq!((list[0].opcode, list[0].flags, &list[0].sges[..]), (6, 0, &[(100, 8, 1)][..]));
}

/// hns grants fewer inline bytes than requested and returns no error.
#[test]
fn granted_inline_bytes_limit_inline_sends() {
    let (fake, context) = device(|_| {});
    fake.grants_inline(32);
    let (_pd, _cq, mut qp) = queue_pair(&context, QpType::Rc, SendApi::Classic);
    assert_eq!((CAPS.inline, qp.caps().inline), (64, 32));
    let bytes = [7_u8; 64];
    for (length, posted) in [(32, Ok(())), (33, Err(libc::EINVAL))] {
        let sges = [Sge { addr: bytes.as_ptr().expose_provenance() as u64, length, lkey: Lkey(0) }];
        let request = SendRequest { wr_id: 1, op: SendOp::Send, flags: SendFlags::INLINE, sges: &sges, to: None };
        // SAFETY: the bytes stay valid.
        assert_eq!(unsafe { qp.post_send(&[request]) }.map_err(|refused| refused.error.errno), posted, "{length}");
    }
}

#[test]
fn long_list_is_posted_in_chunks() {
    let (fake, context) = device(|_| {});
    let (_pd, _cq, mut qp) = queue_pair(&context, QpType::Rc, SendApi::Classic);
    fake.calls();
    // SAFETY: the device moves no data.
    unsafe { qp.post_send(&requests(250)) }.unwrap();
    let posted = lists(&fake.calls());
    assert_eq!(posted.iter().map(Vec::len).collect::<Vec<_>>(), [100, 100, 50]);
    assert_eq!(posted.concat(), (0..250).collect::<Vec<u64>>());
}

#[test]
fn extended_requests_are_built_between_start_and_complete() {
    let (fake, context) = device(|_| {});
    let (_pd, _cq, mut qp) = queue_pair(&context, QpType::Rc, SendApi::Extended);
    fake.calls();
    let remote = Remote { addr: 64, rkey: Rkey(5) };
    let one = &SGE[..1];
    let request = |wr_id, op, flags, sges| SendRequest { wr_id, op, flags, sges, to: None };
    let none = SendFlags::empty();
    let list = [
        request(1, SendOp::SendWithImm(7), SendFlags::SIGNALED, one),
        request(2, SendOp::RdmaRead(remote), none, &SGE[..]),
        request(3, SendOp::CompareSwap { remote, compare: 1, swap: 2 }, SendFlags::FENCE, one),
        request(4, SendOp::LocalInv(Rkey(8)), none, &[]),
    ];
    // SAFETY: the device moves no data.
    unsafe { qp.post_send(&list) }.unwrap();
    let wr = |wr_id, flags, op| Call::Wr { wr_id, flags, op };
    let data = |sges: &[(u64, u32, u32)]| Call::WrSges(sges.to_vec());
    assert_eq!(
        fake.calls(),
        [
            Call::WrStart,
            wr(1, 2, Op::SendImm(7)),
            data(&[(100, 8, 1)]),
            wr(2, 0, Op::Read { rkey: 5, addr: 64 }),
            data(&[(100, 8, 1), (200, 4, 2)]),
            wr(3, 1, Op::CompareSwap { rkey: 5, addr: 64, compare: 1, swap: 2 }),
            data(&[(100, 8, 1)]),
            wr(4, 0, Op::LocalInv(8)),
            Call::WrComplete,
        ]
    );
    // Errors that mean a full queue are mapped to `ENOMEM`. A list is posted completely or not at all.
    fake.refuse("ibv_wr_complete", libc::ENOSPC);
    // SAFETY: same as above.
    let refused = unsafe { qp.post_send(&list) }.unwrap_err();
    assert_eq!((refused.accepted, refused.error.errno), (0, libc::ENOMEM));
    fake.refuse("ibv_wr_complete", 0);
    fake.calls();
    // A request that cannot be built aborts the whole list. If the queue pair does not support the operation of a
    // request, only the earlier requests are posted.
    let inline = request(5, SendOp::Send, SendFlags::INLINE, &SGE[..]);
    // SAFETY: same as above.
    let refused = unsafe { qp.post_send(&[list[0], inline]) }.unwrap_err();
    assert_eq!((refused.accepted, refused.error.errno), (0, libc::EOPNOTSUPP));
    assert_eq!(fake.calls().last(), Some(&Call::WrAbort));
    let tso = request(6, SendOp::Tso { header: &[0; 54], mss: 1000 }, none, one);
    // SAFETY: same as above.
    let refused = unsafe { qp.post_send(&[list[0], tso]) }.unwrap_err();
    assert_eq!((refused.accepted, refused.error.errno), (1, libc::EOPNOTSUPP));
    assert_eq!(fake.calls().last(), Some(&Call::WrComplete));
}

#[test]
fn runs_are_posted_and_the_last_send_is_signalled() {
    for api in [SendApi::Classic, SendApi::Extended] {
        let (fake, context) = device(|_| {});
        let (pd, _cq, mut qp) = queue_pair(&context, QpType::Rc, api);
        let layout = SlotLayout::new(64, 128, 16).unwrap();
        let spec = RegionSpec { bytes: layout.bytes(), pages: PageKind::Normal, strict: false, node: None };
        let region = Arc::new(Region::allocate(spec).unwrap().0);
        let base = region.base().as_ptr().addr() as u64;
        let mr = pd.register(region, Access::LOCAL_WRITE).unwrap();
        let key = mr.lkey().0;
        assert_eq!(fake.calls().last(), Some(&Call::RegMr { access: 1, iova2: false }));
        qp.bind_slots(&mr, layout, 1 << 32).unwrap();
        let stride = u64::from(layout.stride());
        for _ in 0..2 {
            let run: Vec<Desc> = (0..5).map(|slot| Desc { slot, offset: 60 + slot as u16, len: 10 }).collect();
            let place = |slot: u64| vec![(base + slot * stride + 60 + slot, 10, key)];
            // SAFETY: the device moves no data.
            unsafe { qp.post_send_run(&RunSource::new(&run).run(), 700) }.unwrap();
            let flags = |slot| if slot == 4 { 2 } else { 0 };
            let calls = fake.calls();
            if api == SendApi::Classic {
                let [Call::PostSend(list)] = &calls[..] else { panic!("{calls:?}") };
                for (slot, send) in (0u64..).zip(list) {
                    assert_eq!((send.wr_id, send.opcode, send.flags), (700 + slot, 2, flags(slot)));
                    assert_eq!(send.sges, place(slot));
                }
                assert_eq!(list.len(), 5);
            } else {
                let built = (0..5).flat_map(|slot| {
                    [Call::Wr { wr_id: 700 + slot, flags: flags(slot), op: Op::Send }, Call::WrSges(place(slot))]
                });
                let all: Vec<Call> = [Call::WrStart].into_iter().chain(built).chain([Call::WrComplete]).collect();
                assert_eq!(calls, all);
            }
            // SAFETY: same as above.
            unsafe { qp.post_recv_run(&[9, 3]) }.unwrap();
            let [Call::PostRecv(list)] = &fake.calls()[..] else { panic!() };
            let got: Vec<_> = list.iter().map(|recv| (recv.wr_id - (1 << 32), recv.sges.clone())).collect();
            let room = |slot: u64| vec![(base + slot * stride + 64, layout.room(), key)];
            assert_eq!(got, [(9, room(9)), (3, room(3))]);
        }
    }
}

/// If the driver has no function `modify_cq`, moderation is refused with `EOPNOTSUPP`.
#[test]
fn completion_events_can_be_moderated() {
    for has in [true, false] {
        let (fake, context) = device(|verbs| {
            if !has {
                verbs.modify_cq = None;
            }
        });
        let (pd, mut cq, qp) = queue_pair(&context, QpType::Rc, SendApi::Classic);
        fake.calls();
        let moderated = cq.moderate(16, 50).map_err(|error| (error.verb, error.errno));
        match has {
            true => assert_eq!(fake.calls(), [Call::ModerateCq { cq: 1, mask: 1, count: 16, period: 50 }]),
            false => assert_eq!(moderated, Err(("ibv_modify_cq", libc::EOPNOTSUPP))),
        }
        drop((qp, cq, pd));
        assert_eq!(fake.live(), 0);
    }
}

/// Enhanced connection establishment (ECE): the options are read from one queue pair and set on its peer.
#[test]
fn connection_options_are_read_and_set() {
    let (fake, context) = device(|_| {});
    let (pd, cq, mut qp) = queue_pair(&context, QpType::Rc, SendApi::Classic);
    let options = qp.ece().unwrap();
    assert_eq!(options, Ece { vendor: 0x15b3, options: 0x3000_0002 });
    fake.calls();
    assert_eq!(
        qp.set_ece(options),
        Ok(Ece { options: 2, ..options }),
        "the device returns only the options that it accepts"
    );
    assert_eq!(fake.calls(), [Call::SetEce { qp: 1, vendor: 0x15b3, options: 0x3000_0002, comp_mask: 0 }]);
    fake.refuse("ibv_set_ece", libc::EOPNOTSUPP);
    assert_eq!(qp.set_ece(options).unwrap_err(), VerbError::new("ibv_set_ece", libc::EOPNOTSUPP));
    drop((qp, cq, pd));
}

#[test]
fn relaxed_ordering_is_registered_with_reg_mr_iova2() {
    let (fake, context) = device(|_| {});
    let pd = VerbsPd::alloc(&context).unwrap();
    let region = || {
        let spec = RegionSpec { bytes: 4096, pages: PageKind::Normal, strict: false, node: None };
        Arc::new(Region::allocate(spec).unwrap().0)
    };
    let access = Access::LOCAL_WRITE | Access::RELAXED_ORDERING;
    let mr = pd.register(region(), access).unwrap();
    assert_eq!(fake.calls(), [Call::RegMr { access: 1 | 1 << 20, iova2: true }]);
    fake.refuse("ibv_reg_mr", libc::ENOMEM);
    let error = pd.register(region(), access).unwrap_err();
    assert_eq!(error.errno, libc::ENOMEM);
    let message = error.on("fake").to_string();
    for part in ["fake: ibv_reg_mr failed", "ulimit -l", "LimitMEMLOCK=", "/etc/security/limits.d/"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    drop((pd, mr));
    assert_eq!(fake.live(), 0);
}

/// A removed device returns `EIO` for every call. The objects are nevertheless released in the correct order.
#[test]
fn failed_destruction_does_not_stop_cleanup() {
    let (fake, context) = device(|_| {});
    let objects = queue_pair(&context, QpType::Rc, SendApi::Classic);
    for verb in ["ibv_destroy_qp", "ibv_destroy_cq", "ibv_modify_qp"] {
        fake.refuse(verb, libc::EIO);
    }
    let (pd, cq, mut qp) = objects;
    assert_eq!(qp.modify(&QpAttributes::to(QpState::Err).0, AttributeMask::STATE).unwrap_err().errno, libc::EIO);
    drop((cq, pd, qp));
    let calls = fake.calls();
    let at = |call: &Call| calls.iter().position(|other| other == call).unwrap();
    assert!(
        at(&Call::DestroyQp(1)) < at(&Call::DestroyCq(1)),
        "the queue pair is destroyed before its completion queue, whatever was dropped first"
    );
    drop(context);
}

fn buffer(pd: &VerbsPd, access: Access) -> (Weak<Region>, VerbsMr) {
    let spec = RegionSpec { bytes: 4096, pages: PageKind::Normal, strict: false, node: None };
    let region = Arc::new(Region::allocate(spec).unwrap().0);
    (Arc::downgrade(&region), pd.register(region, access).unwrap())
}

/// If the device keeps a registration, the device may still write to the memory.
#[test]
fn memory_stays_mapped_if_its_deregistration_fails() {
    let (fake, context) = device(|_| {});
    let pd = VerbsPd::alloc(&context).unwrap();
    let (region, mr) = buffer(&pd, Access::LOCAL_WRITE);
    drop(mr);
    assert_eq!(region.strong_count(), 0, "the memory is unmapped after its deregistration");
    let (region, mr) = buffer(&pd, Access::LOCAL_WRITE);
    fake.refuse("ibv_dereg_mr", libc::EBUSY);
    drop(mr);
    assert_eq!(region.strong_count(), 1, "the registration still exists");
}

/// If the driver refuses a type 2 bind without naming the request, the driver may hold the bind. The queue pair is then
/// moved to ERR, which flushes the bind.
#[test]
fn type_2_bind_is_flushed_if_the_driver_may_hold_it() {
    for (at, state) in [(Some(0), QpState::Rts), (None, QpState::Err)] {
        let (fake, context) = device(with_windows);
        let (pd, _cq, mut qp) = queue_pair(&context, QpType::Rc, SendApi::Classic);
        let (_region, mr) = buffer(&pd, Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::MW_BIND);
        let mut window = pd.alloc_mw(MwKind::Type2).unwrap();
        fake.refuse_at("ibv_post_send", libc::ENOMEM, at);
        let (access, flags) = (Access::REMOTE_WRITE, SendFlags::SIGNALED);
        let refused = qp.bind_mw(&mut window, &MwBind { wr_id: 1, mr: &mr, addr: 0, length: 64, access, flags });
        let refused = refused.unwrap_err();
        assert_eq!((refused.accepted, refused.error.errno, qp.state()), (0, libc::ENOMEM, state));
    }
}

/// A flushed bind leaves the window bound to the region of the previous bind.
#[test]
fn window_keeps_the_regions_of_all_posted_binds() {
    let (fake, context) = device(with_windows);
    let (pd, cq, mut qp) = queue_pair(&context, QpType::Rc, SendApi::Classic);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::MW_BIND;
    let (first, first_mr) = buffer(&pd, access);
    let (second, second_mr) = buffer(&pd, access);
    let mut window = pd.alloc_mw(MwKind::Type1).unwrap();
    let bind =
        |mr, length| MwBind { wr_id: 1, mr, addr: 0, length, access: Access::REMOTE_WRITE, flags: SendFlags::SIGNALED };
    qp.bind_mw(&mut window, &bind(&first_mr, 64)).unwrap();
    let bound = fake.bindings();
    let (error, mask) = QpAttributes::to(QpState::Err);
    qp.modify(&error, mask).unwrap();
    qp.bind_mw(&mut window, &bind(&second_mr, 64)).unwrap();
    qp.bind_mw(&mut window, &bind(&second_mr, 0)).unwrap();
    assert_eq!((fake.bindings(), bound.len()), (bound, 1), "the window is still bound to the first region");
    drop((first_mr, second_mr));
    assert_eq!((first.strong_count(), second.strong_count()), (1, 1));
    drop(window);
    assert_eq!((first.strong_count(), second.strong_count()), (0, 0), "both regions are deregistered and unmapped");
    drop((qp, cq, pd, context));
    assert_eq!(fake.live(), 0);
}

/// The driver may hold any of the receives and write to their memory later. An SRQ cannot be flushed.
#[test]
fn shared_receives_count_as_posted_if_the_driver_names_no_failed_receive() {
    let mut attr = attributes();
    (attr.orig_attr.max_srq, attr.orig_attr.max_srq_wr, attr.orig_attr.max_srq_sge) = (4, 100, 1);
    let fake = Fake::with_attributes(attr, |_| {});
    // SAFETY: the context is open and belongs to the fake.
    let context = unsafe { Context::new(NonNull::new(fake.context()).unwrap(), "fake".to_owned()) }.unwrap();
    let pd = VerbsPd::alloc(&Arc::new(context)).unwrap();
    let mut srq = pd.create_srq(&SrqSpec { depth: 100, sges: 1 }).unwrap();
    let requests: Vec<RecvRequest<'_>> = (0..3).map(|wr_id| RecvRequest { wr_id, sges: &[] }).collect();
    for (at, accepted) in [(Some(1), 1), (None, 3)] {
        fake.refuse_at("ibv_post_srq_recv", libc::ENOMEM, at);
        // SAFETY: the requests refer to no memory.
        let error = unsafe { srq.post_recv(&requests) }.unwrap_err();
        assert_eq!(error, PostError { accepted, error: VerbError::new("ibv_post_srq_recv", libc::ENOMEM) });
    }
    drop((srq, pd));
    assert_eq!(fake.live(), 0);
}
