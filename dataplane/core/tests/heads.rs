//! Tests of `heads_mut`, which gives a stage the first bytes and the metadata of each packet of a batch.

use dataplane_core::harness::Harness;
use dataplane_core::mem::Batch;
use dataplane_core::pipeline::{Ctx, Stage};
use dataplane_stages::parse::Parse;

/// With `heads_mut`, writes the frame length to `user` and 0xee to the first byte, up to the first frame that is not
/// IPv4. Then writes 1 to `user` of this packet and of all later packets.
struct Marks;

impl Stage for Marks {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        let mark = |head: dataplane_core::mem::Head<'_, 14>| {
            head.meta.user = head.len;
            (head.bytes[12..] == [8, 0]).then(|| head.bytes[0] = 0xee)
        };
        let marked = batch.heads_mut().map_while(mark).count();
        for mut packet in batch.iter_mut_from(marked) {
            packet.meta_mut().user = 1;
        }
    }
}

#[test]
fn heads_mut_returns_no_heads_if_a_frame_is_too_short() {
    let v4 = dataplane_core::harness::frame().ipv4([192, 0, 2, 1].into(), [192, 0, 2, 2].into()).build();
    let v6 = dataplane_core::harness::frame().ether_type(0x86dd).payload(&[0; 46]).build();
    let users = |frames: &[Vec<u8>]| -> Vec<(u8, u16)> {
        let mut harness = Harness::builder().after(Marks).build::<Parse>("").unwrap();
        harness.run(frames).iter().map(|outcome| (outcome.bytes[0], outcome.meta.user)).collect()
    };
    let (marked, plain) = ((0xee, v4.len() as u16), (v4[0], 1));
    assert_eq!(users(&[v4.clone(), v4.clone()]), [marked, marked]);
    assert_eq!(users(&[v4.clone(), v6, v4.clone()]), [marked, (v4[0], 1), plain]);
    assert_eq!(users(&[v4.clone(), vec![1; 13]]), [plain, (1, 1)]);
}
