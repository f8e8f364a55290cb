//! Polls a completion queue of the first verbs device a given number of times. Prints the number of completions, and a
//! checksum over the last batch of completions.
//!
//! Usage: `polling BURST POLLS`. `benches/polling/poll.c` performs the same polls in C. `benches/instructions` counts
//! the instructions of both programs. The device is the fake device of `benches/polling/fake.c`.

use std::env;
use std::error::Error;

use dataplane::ibverbs::{VerbsCq, VerbsProvider};
use dataplane::verbs::{CompletionQueue, Completions, CqApi, CqSpec, Device, PollFields, Provider};

/// Polls the queue. `benches/instructions` counts the instructions of this function.
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
    let [burst, polls] = &words[..] else { return Err("usage: polling BURST POLLS".into()) };
    let provider = VerbsProvider;
    let found = provider.devices()?.into_iter().next().ok_or("there is no verbs device")?;
    let device = provider.open(&found.name)?;
    let fields = PollFields::BYTE_LEN | PollFields::TIMESTAMP;
    let (mut cq, granted) = device.create_cq(&CqSpec { depth: 1024, fields, ..CqSpec::default() }, None)?;
    if granted.api != CqApi::Extended || granted.fields != fields {
        return Err(format!("{}: the device granted {granted}, {:?}", found.name, granted.why).into());
    }
    let mut run = Completions::new();
    let count = poll(&mut cq, &mut run, burst.parse()?, polls.parse()?)?;
    let entry = |at: usize| run.wr_id[at].wrapping_mul(3) ^ u64::from(run.byte_len[at]) ^ run.ticks[at].0;
    let sum = (0..run.len).fold(0_u64, |sum, at| sum.wrapping_mul(31).wrapping_add(entry(at)));
    println!("{count} {sum}");
    Ok(())
}
