//! Looks up in the library's tables what benches/peer/tables.c looks up in the peers', from the same files, which
//! benches/peer/sets.py writes; hands items from one core to another as benches/peer/ring.c does.
//!
//!     parts lpm4|lpm6|exact|acl FILE CORE
//!     parts ring FROM_CORE CORE
//!     parts acl-change FILE CORE
//!
//! The last tells how long a change of one rule takes, and compiling all of them. The others print `ready`, how long it took to
//! be, and a sum over the results of all lookups, or over the first items; then for every line `measure SECONDS` the rate, in
//! millions of lookups or items a second. They end with their input.

mod acl;
mod exact;
mod file;
mod lpm;
mod ring;

use std::hint::black_box;
use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

/// Lookups of one call.
const BATCH: usize = 32;

/// A table, what is looked up in it, and what it finds.
trait Table {
    /// How many lookups there are.
    fn len(&self) -> usize;
    /// Does those of a range.
    fn lookup(&self, range: std::ops::Range<usize>, values: &mut [u32]);
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let [_, kind, what, core] = &words[..] else {
        fail("usage: parts lpm4|lpm6|exact|acl|acl-change|ring FILE|FROM_CORE CORE")
    };
    let core = number(core);
    pin(core);
    let began = Instant::now();
    if kind == "ring" {
        let from = number(what);
        let (_, sum) = ring::hand_over(from, ring::FIRST_ITEMS, Duration::from_secs(60));
        return serve(began.elapsed(), sum, |time| ring::hand_over(from, u64::MAX, time).0);
    }
    let bytes = std::fs::read(what).unwrap_or_else(|error| fail(&format!("{what}: {error}")));
    if kind == "acl-change" {
        let [change, all] = acl::Rules::new(&bytes).change(Duration::from_secs(1));
        return println!("change {:.1} us, all {:.1} us", change.as_secs_f64() * 1e6, all.as_secs_f64() * 1e6);
    }
    let table: Box<dyn Table> = match kind.as_str() {
        "lpm4" => Box::new(lpm::V4::new(&bytes)),
        "lpm6" => Box::new(lpm::V6::new(&bytes)),
        "exact" => Box::new(exact::Flows::new(&bytes)),
        "acl" => Box::new(acl::Rules::new(&bytes)),
        _ => fail(&format!("there is no kind {kind}")),
    };
    serve(began.elapsed(), sum(&*table), |time| measure(&*table, time));
}

/// Says that it is ready, and measures when it is asked to.
fn serve(took: Duration, sum: u64, measure: impl Fn(Duration) -> f64) {
    println!("ready {:.3} {sum:016x}", took.as_secs_f64());
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap_or_else(|error| fail(&format!("standard input: {error}")));
        match line.split_once(' ').map(|(order, seconds)| (order, seconds.parse())) {
            Some(("measure", Ok(seconds))) => println!("rate {:.3}", measure(Duration::from_secs_f64(seconds))),
            _ if line == "quit" => break,
            _ => fail(&format!("no such order: {line}")),
        }
        std::io::stdout().flush().unwrap_or_else(|error| fail(&format!("standard output: {error}")));
    }
}

fn number(core: &str) -> usize {
    core.parse().unwrap_or_else(|_| fail(&format!("{core} is no core")))
}

/// Has this thread run on a core alone.
fn pin(core: usize) {
    if !core_affinity::set_for_current(core_affinity::CoreId { id: core }) {
        fail(&format!("this thread may not run on core {core}"));
    }
}

fn fail(message: &str) -> ! {
    eprintln!("parts: {message}");
    std::process::exit(1)
}

/// Of the results of all lookups, in their order.
fn sum(table: &dyn Table) -> u64 {
    let (mut sum, mut values) = (0xcbf2_9ce4_8422_2325_u64, [0; BATCH]);
    for at in (0..table.len()).step_by(BATCH) {
        table.lookup(at..at + BATCH, &mut values);
        for value in values {
            sum = (sum ^ u64::from(value)).wrapping_mul(0x100_0000_01b3);
        }
    }
    sum
}

/// Millions of lookups a second.
fn measure(table: &dyn Table, time: Duration) -> f64 {
    let (mut done, mut at, mut values) = (0u64, 0, [0; BATCH]);
    let began = Instant::now();
    loop {
        for _ in 0..1024 {
            table.lookup(at..at + BATCH, &mut values);
            black_box(&values);
            at += BATCH;
            if at == table.len() {
                at = 0;
            }
        }
        done += 1024 * BATCH as u64;
        let elapsed = began.elapsed();
        if elapsed >= time {
            return done as f64 / elapsed.as_secs_f64() / 1e6;
        }
    }
}
