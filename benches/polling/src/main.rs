//! Polls a completion queue of the first verbs device so many times, and prints a sum over the last run.
//!
//! `polling BURST POLLS`. `benches/polling/poll.c` does the same in C, and `benches/instructions` counts both; the device
//! is that of `benches/polling/fake.c`.

use std::env;
use std::error::Error;

use dataplane::provider::verbs::{VerbsCq, VerbsProvider};
use dataplane::provider::{CompletionQueue, Completions, CqApi, CqSpec, Device, PollFields, Provider};

/// What is counted.
#[inline(never)]
fn poll(cq: &mut VerbsCq, run: &mut Completions, burst: usize, polls: u64) -> Result<u64, Box<dyn Error>> {
    let mut count = 0;
    for _ in 0..polls {
        count += cq.poll_run(run, burst)? as u64;
    }
    Ok(count)
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = env::args().skip(1).collect();
    let [burst, polls] = &words[..] else { return Err("wanted: polling BURST POLLS".into()) };
    let provider = VerbsProvider;
    let found = provider.devices()?.into_iter().next().ok_or("there is no verbs device")?;
    let device = provider.open(&found.name)?;
    let fields = PollFields::BYTE_LEN | PollFields::TIMESTAMP;
    let (mut cq, granted) = device.create_cq(&CqSpec { depth: 1024, fields, ..CqSpec::default() }, None)?;
    if granted.api != CqApi::Extended || granted.fields != fields {
        return Err(format!("{}: it has {granted}, {:?}", found.name, granted.why).into());
    }
    let mut run = Completions::new();
    let count = poll(&mut cq, &mut run, burst.parse()?, polls.parse()?)?;
    let entry = |at: usize| run.wr_id[at].wrapping_mul(3) ^ u64::from(run.byte_len[at]) ^ run.ticks[at].0;
    let sum = (0..run.len).fold(0_u64, |sum, at| sum.wrapping_mul(31).wrapping_add(entry(at)));
    println!("{count} {sum}");
    Ok(())
}
